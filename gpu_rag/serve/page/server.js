// Requests to the server, its errors in plain words, and links. base: "", or "/w/NAME" of one of several indexes.

const KEY = "gpu-rag key";
export const server = { base: "", onKeyWanted: () => {} };

// The fragment of an address: a view of this page with what it shows, and the index if it is not the one at the root.
export function link(view, values = {}) {
  const all = { view, ...values, index: decodeURIComponent(server.base.replace("/w/", "")) };
  return "#" + new URLSearchParams(Object.entries(all).filter(([, value]) => value));
}

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = () => sessionStorage.getItem(KEY) ?? "";
export const setKey = (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY));

const PLAIN = {
  401: "This server asks for a key. Enter the one you were given.",
  403: "Your key may not do this.",
  409: "This index lacks what this needs.",
  413: "This is too large for the server.",
  421: "The server does not know itself by the name in the address.",
};

// The response to a request. Raises Failure for a status that is an error.
async function responded(path, { body, method, signal, headers = {} } = {}) {
  const sent = { ...headers }, own = key();
  if (own) sent.Authorization = "Bearer " + own;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(server.base + path, {
      method: method ?? (body === undefined ? "GET" : "POST"),
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Failure(0, "The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  if (response.status === 401 && own === key()) server.onKeyWanted(); // else a new key was given meanwhile
  const wait = response.headers.get("Retry-After");
  const later = wait ? ` Try again in ${wait} s.` : "";
  const plain = response.status === 401 && own ? "The server does not know this key." : PLAIN[response.status];
  const said = [plain, error?.message ?? response.statusText].filter(Boolean).join(" ");
  throw new Failure(response.status, said + later);
}

export const fetched = async (path, options) => (await responded(path, options)).json();

// The JSON of a GET with query values; a list gives a value for each of its items.
export function got(path, values = {}, options) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) for (const item of [value].flat()) query.append(name, item);
  return fetched(path + (query.size ? "?" + query : ""), options);
}

// A streamed chat completion: onText gets the answer so far. Returns the row. Raises Failure.
export async function chat(question, { method, where, signal, onText }) {
  const messages = [{ role: "user", content: question }];
  const body = { model: method, messages, where, words: true, stream: true };
  const response = await responded("/v1/chat/completions", { body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", answer = "", row = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") continue;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Failure(503, chunk.error.message);
      row = chunk.gpu_rag ?? row;
      const piece = chunk.choices[0]?.delta.content;
      if (piece) onText((answer += piece));
    }
  }
  if (!row) throw new Failure(0, "The answer broke off. Is the server still running?");
  return row;
}
