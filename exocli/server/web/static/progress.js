// From the server's counts to what a person reads: speed, time left, share from the cache. Pure.

import { number } from "./dom.js";

const WINDOW_MS = 5000;

/** Tokens a second over the last seconds; `now` in ms. */
export class Rate {
  #marks = [];

  add(count, now) {
    this.#marks.push([now, count]);
    while (this.#marks.length > 2 && now - this.#marks[0][0] > WINDOW_MS) this.#marks.shift();
  }

  /** null until there is something to measure. */
  get perSecond() {
    const [first, last] = [this.#marks[0], this.#marks.at(-1)];
    if (!first || last[0] - first[0] < 50) return null;
    return ((last[1] - first[1]) * 1000) / (last[0] - first[0]);
  }
}

/** "1,024 of 3,400 tokens · 180 tokens/s · 13 s left · 30 % from the cache"; on a phone it breaks after a dot. */
export function prefillLine({ processed, total, cached }, perSecond) {
  const parts = [`${number(processed)} of ${number(total)} tokens`];
  if (perSecond > 0) {
    parts.push(`${speed(perSecond)} tokens/s`, `${duration((total - processed) / perSecond)} left`);
  }
  const share = Math.round((100 * cached) / total);
  if (share > 0) parts.push(`${share} % from the cache`);
  return dotted(parts);
}

/** Joined; a line ends only between two parts. */
export const dotted = (parts) => parts.map((part) => part.replaceAll(" ", "\u00a0")).join("\u00a0· ");

export const speed = (perSecond) => (perSecond < 10 ? perSecond.toFixed(1) : number(perSecond));

export function duration(seconds) {
  if (seconds < 1) return "under 1 s";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return `${Math.round(seconds / 60)} min`;
}

export function bytes(count) {
  if (count < 1e6) return `${number(count / 1e3)} kB`;
  return count < 1e9 ? `${number(count / 1e6)} MB` : `${(count / 1e9).toFixed(1)} GB`;
}
