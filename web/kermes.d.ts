/** Kermes in a web page: language models and vector search on the user's own machine, in a Web Worker.
 * Nothing leaves the page. Failures reject with an Error whose message is meant for people. */

/** A job that gives out events until it ends: iterate it once. */
export interface Job<Event, Result> extends AsyncIterable<Event> {
  /** It ends as soon as possible, with what it has. */
  stop(): void;
  /** How it ended; known when the iteration is over. */
  readonly result: Promise<Result>;
}

export interface ModelInfo {
  name: string;
  architecture: string;
  /** Of most weights: "q4_1". */
  type: string;
  parameters: number;
  /** Of weights. */
  bytes: number;
  /** Tokens of a sequence here, and what the model was trained for. */
  context: number;
  trained_context: number;
  vocab: number;
  layers: number;
  has_template: boolean;
  /** What the model's file recommends. */
  sampling: { temperature: number; top_k: number; top_p: number; min_p: number; repeat_penalty: number };
}

export interface Message {
  role: "system" | "user" | "assistant" | string;
  content: string;
}

/** How the next token is chosen, and when it ends; what is left out is the model's own choice. */
export interface Generation {
  max_tokens?: number;
  temperature?: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
  typical?: number;
  repeat_penalty?: number;
  seed?: number;
  /** Texts at which it ends, up to 16; they are not given out. */
  stop?: string[];
  /** GBNF, or a JSON schema, that the text is held to. */
  grammar?: string;
  schema?: object;
  /** Goes on after an end-of-text token. */
  past_end?: boolean;
}

export interface Figures {
  prompt_tokens: number;
  /** Of these, what was known from the last turn. */
  reused: number;
  tokens: number;
  prompt_seconds: number;
  seconds: number;
  first_seconds: number;
  end: "tokens" | "end" | "stop" | "grammar" | "context" | "stopped" | "";
}

export interface Model {
  readonly info: ModelInfo;
  /** Goes on with a conversation, by the model's template; gives out pieces of text. One at a time. */
  chat(messages: Message[], settings?: Generation): Job<string, Figures>;
  /** Goes on with a text. */
  complete(prompt: string, settings?: Generation): Job<string, Figures>;
  /** flags: 1 adds what the tokenizer wants around a text, 2 takes special tokens in it as such. */
  tokenize(text: string, flags?: number): Promise<number[]>;
  close(): Promise<void>;
}

export interface Progress {
  stage: string;
  done: number;
  total: number;
}

export interface ModelOptions {
  /** Tokens of a sequence; 0 or none: the model's. A long one takes memory: see docs/web.md. */
  context?: number;
  /** Of keys and values: "f16". */
  cache?: "f16" | "q8_0" | "f32";
  onProgress?: (p: Progress) => void;
}

export interface IndexOptions {
  metric?: "l2" | "ip" | "cosine";
  mode?: "fast" | "dense";
  /** How small; at most one of the three. */
  bytes?: number;
  ratio?: number;
  recall?: number;
  seed?: number;
  /** Leaves out vectors that hold NaN or infinity, instead of refusing the file. */
  skip_bad?: boolean;
  onProgress?: (p: Progress) => void;
}

export interface IndexInfo {
  count: number;
  dim: number;
  /** As stored in the file: "f32". */
  type: string;
  /** Of the index, and of the vectors. */
  bytes: number;
  input_bytes: number;
  /** Of one vector's code. */
  code_bytes: number;
  anchors: number;
  /** Of the ten nearest, as measured; null: not measured. */
  recall: number | null;
  mse: number | null;
  skipped: number;
}

export interface Neighbour {
  id: number;
  distance: number;
}

export interface Index {
  readonly info: IndexInfo;
  /** query: a row's number in the file, or a vector. exact: by the file's own vectors, all of them. */
  search(query: number | number[] | Float32Array, k?: number, exact?: boolean): Promise<{ found: Neighbour[]; seconds: number }>;
  /** The index as a file that `kermes search` opens. */
  file(): Promise<Blob>;
}

/** As `kermes train` has them, in JSON: model, layers, heads, dim, context, batch, steps, lr, tokenizer, ... */
export type TrainSettings = Record<string, string | number | boolean>;

export interface TrainEvent {
  event: "start" | "log" | "eval" | "sample" | "note" | "saved" | "resumed";
  step: number;
  steps: number;
  train_loss?: number | null;
  val_loss?: number | null;
  tokens_per_s?: number | null;
  seconds?: number | null;
  text?: string;
  /** With "resumed": [step, train loss, validation loss] of what was before. */
  curve?: [number, number | null, number | null][];
}

export interface TrainResult {
  end: "done" | "early" | "stopped";
  step: number;
  steps: number;
  parameters: number;
  val_loss: number | null;
  tokens_per_s: number | null;
  curve: [number, number | null, number | null][];
}

export interface StoredRun {
  step: number;
  steps: number;
  done: boolean;
  date: number;
  curve: [number, number | null, number | null][];
}

export class Kermes {
  /** Starts the worker and loads the engine. worker: where worker.js is, if not beside this file. */
  static start(options?: { worker?: string | URL }): Promise<Kermes>;
  readonly version: string;
  /** A GGUF file: one that the user picked, or an address of the page's own server. It is read piece by
   * piece and lies in memory once. Up to 2 GiB. */
  open(file: Blob | string | URL, options?: ModelOptions): Promise<Model>;
  /** Compresses the vectors of an .npy file; takes the place of the index before it. */
  compress(file: Blob, options?: IndexOptions): Promise<Index>;
  /** Trains a model on a text. What it has is stored in the browser every few seconds. */
  train(text: string, settings: TrainSettings): Job<TrainEvent, TrainResult>;
  /** Goes on with the stored run, to the same bits as if it had never stopped. */
  resume(): Job<TrainEvent, TrainResult>;
  storedRun(): Promise<StoredRun | null | undefined>;
  forgetRun(): Promise<void>;
  /** The model of the run that was last trained or resumed in this page. */
  openTrained(): Promise<Model>;
  /** Ends whatever is under way and starts the engine afresh, without models. */
  restart(): Promise<void>;
  close(): void;
}
