#compdef exo exocli
# Tab completion of exo for zsh. Made by "exo completions zsh".
_exo() {
    local kind value text
    local -a spaced bare
    local -a typed=("${(@Q)words[2,CURRENT]}")
    while IFS=$'\t' read -r kind value text; do
        value="${value//:/\\:}"
        case "$kind" in
            plain)
                if [[ "$value" == *= ]]; then
                    bare+=("$value${text:+:$text}")
                else
                    spaced+=("$value${text:+:$text}")
                fi
                ;;
            file) _files ;;
            dir) _files -/ ;;
        esac
    done < <(_EXO_COMPLETE=words "${(Q)words[1]/#\~/$HOME}" "${typed[@]}" 2>/dev/null)
    (( $#spaced )) && _describe -V exo spaced
    (( $#bare )) && _describe -V exo bare -S ''
}
if [[ "$zsh_eval_context[-1]" == loadautofunc ]]; then
    _exo "$@"
else
    compdef _exo exo exocli
fi
