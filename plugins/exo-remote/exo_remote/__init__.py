"""The `remote` backend: any server that speaks OpenAI's or Ollama's API, driven as if it were here."""
