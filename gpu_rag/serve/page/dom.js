// Elements of the page. Whatever comes from the server becomes text, never markup, its control characters as escapes.

export const at = (id) => document.getElementById(id);

const OBEYED = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
export const visible = (text) =>
  String(text).replace(OBEYED, (sign) => "\\u" + sign.charCodeAt(0).toString(16).padStart(4, "0"));

// An element with attributes, listeners (onclick: ...) and children; children that are no elements become text.
export function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(key, visible(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map(node));
  return made;
}

const node = (child) => (child instanceof Node ? child : visible(child));

export const fill = (holder, ...children) =>
  holder.replaceChildren(...children.filter((child) => child !== null && child !== undefined).map(node));

export const button = (text, onclick, more = {}) => make("button", { type: "button", onclick, ...more }, text);

export const count = (n, one, many = one + "s") => n.toLocaleString("en") + " " + (n === 1 ? one : many);

// Words of two letters or more, as they are compared: without case and plural.
const WORD = /[\p{L}\p{N}]{2,}/gu;
const plain = (word) => word.toLowerCase().replace(/(?<=.{3})s$/, "");
const SILENT = new Set(
  "the an of in on at by to is was were are be did do does and or which who what where when how that it his her".split(" "),
);
export const wordsOf = (text) =>
  new Set((String(text ?? "").match(WORD) ?? []).map(plain).filter((word) => !SILENT.has(word)));

// A text with the words that are in `words` made strong.
export function strengthened(text, words) {
  const made = document.createDocumentFragment();
  let end = 0;
  for (const match of text.matchAll(WORD)) {
    if (!words.has(plain(match[0]))) continue;
    made.append(visible(text.slice(end, match.index)), make("strong", {}, match[0]));
    end = match.index + match[0].length;
  }
  made.append(visible(text.slice(end)));
  return made;
}

// A text with sentences marked: [{start, end}], in characters, not in UTF-16. Their words in `words` are strong.
export function marked(text, sentences, words) {
  const made = document.createDocumentFragment();
  const characters = Array.from(text);
  let end = 0;
  for (const { start, end: last } of [...sentences].sort((a, b) => a.start - b.start)) {
    if (start < end || last > characters.length) continue;
    made.append(visible(characters.slice(end, start).join("")));
    made.append(make("mark", {}, strengthened(characters.slice(start, last).join(""), words)));
    end = last;
  }
  made.append(visible(characters.slice(end).join("")));
  return made;
}
