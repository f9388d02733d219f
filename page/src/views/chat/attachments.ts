/** Files that go with a message: texts, and pictures. */

import { dataUrl, isPicture, pictureIn } from "./pictures";
import type { Attachment } from "./types";

export const MOST_BYTES = 500_000;
export const MOST_FILES = 8;

/** Why a file is not attached. */
export type Refusal = "size" | "kind" | "empty" | "unreadable" | "blind" | "picture_size" | "picture_broken";

/** A file's picture or text; or why not. `sees`: whether the model takes pictures. Of texts only texts in UTF-8 (or UTF-16 with its mark) can be read by a language model. */
export async function read(file: File, sees: boolean): Promise<Attachment | Refusal> {
  if (isPicture(file.type)) return sees ? readPicture(file) : "blind";
  if (file.size > MOST_BYTES) return "size";
  let bytes: ArrayBuffer;
  try {
    bytes = await file.arrayBuffer();
  } catch {
    return "unreadable"; // a folder, or a file that is gone
  }
  if (!bytes.byteLength) return "empty";
  const text = textOf(new Uint8Array(bytes));
  return text === null ? "kind" : { name: file.name, text, bytes: bytes.byteLength, edit: true };
}

async function readPicture(file: File): Promise<Attachment | Refusal> {
  const picture = await pictureIn(file);
  if (typeof picture === "string") return picture;
  return { name: file.name, text: "", bytes: picture.size, edit: false, picture };
}

function textOf(bytes: Uint8Array): string | null {
  const mark =
    bytes[0] === 0xff && bytes[1] === 0xfe
      ? "utf-16le"
      : bytes[0] === 0xfe && bytes[1] === 0xff
        ? "utf-16be"
        : "utf-8";
  try {
    const text = new TextDecoder(mark, { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

/** The user's words with the files before them, each in a fence that none of its lines can close. */
function withFiles(words: string, files: readonly Attachment[]): string {
  const texts = files.filter((file) => !file.picture && !file.dropped);
  return [...texts.map(fenced), words].filter((part) => part).join("\n\n");
}

/** What a message of the reader sends: its words alone, or the pictures and then the words. */
export async function contentOf(words: string, files: readonly Attachment[]): Promise<string | object[]> {
  const text = withFiles(words, files);
  const pictures = files.flatMap(({ picture }) => picture ?? []);
  if (!pictures.length) return text;
  const urls = await Promise.all(pictures.map(dataUrl));
  const shown = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...shown, { type: "text", text }] : shown;
}

function fenced(file: Attachment): string {
  const longest = Math.max(2, ...Array.from(file.text.matchAll(/`+/g), ([ticks]) => ticks.length));
  const fence = "`".repeat(longest + 1);
  const kind = /\.([A-Za-z0-9]{1,12})$/.exec(file.name)?.[1] ?? "";
  const end = file.text.endsWith("\n") ? "" : "\n";
  return `${file.name.replace(/\s+/g, " ")}:\n${fence}${kind}\n${file.text}${end}${fence}`;
}

/** What the answer will mostly repeat; null if nothing is to be edited. */
export function prediction(files: readonly Attachment[]): string | null {
  const edited = files.filter((file) => file.edit);
  return edited.length ? edited.map((file) => file.text).join("\n") : null;
}
