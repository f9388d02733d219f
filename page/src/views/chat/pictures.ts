/** Pictures that go with a message: read, made as small as models can use, and sent as data URLs. */

/** What the server and all browsers read. */
const KINDS = ["image/png", "image/jpeg", "image/webp"];
/** No model sees more of a picture: it is scaled down to this on its longer side. */
export const MOST_PIXELS = 2048;
/** A picture as it is kept and sent. */
const MOST_BYTES = 4_000_000;
/** A file that is opened at all. */
const MOST_FILE_BYTES = 50_000_000;
const QUALITIES = [0.9, 0.75, 0.5];

export function isPicture(type: string): boolean {
  return KINDS.includes(type);
}

/** The picture in a file, scaled down if it is larger than models use; or why there is none. */
export async function pictureIn(file: Blob): Promise<Blob | "picture_size" | "picture_broken"> {
  if (file.size > MOST_FILE_BYTES) return "picture_size";
  let bitmap: ImageBitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    return "picture_broken";
  }
  const scale = Math.min(1, MOST_PIXELS / Math.max(bitmap.width, bitmap.height));
  try {
    if (scale === 1 && file.size <= MOST_BYTES) return file.slice(0, file.size, file.type); // not bound to the disk
    return (await smaller(bitmap, scale, file.type)) ?? "picture_size";
  } finally {
    bitmap.close();
  }
}

async function smaller(bitmap: ImageBitmap, scale: number, type: string): Promise<Blob | null> {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const drawing = canvas.getContext("2d");
  if (!drawing) return null;
  drawing.imageSmoothingQuality = "high";
  drawing.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const whole = type === "image/jpeg" ? null : await written(canvas, type, 1);
  if (whole && whole.size <= MOST_BYTES) return whole;
  drawing.globalCompositeOperation = "destination-over"; // JPEG has no transparency: on white
  drawing.fillStyle = "#fff";
  drawing.fillRect(0, 0, canvas.width, canvas.height);
  for (const quality of QUALITIES) {
    const made = await written(canvas, "image/jpeg", quality);
    if (made && made.size <= MOST_BYTES) return made;
  }
  return null;
}

function written(canvas: HTMLCanvasElement, type: string, quality: number): Promise<Blob | null> {
  return new Promise((done) => canvas.toBlob(done, type, quality));
}

/** A picture as text, for requests and exported conversations. */
export function dataUrl(picture: Blob): Promise<string> {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result as string);
    reader.onerror = () => failed(reader.error ?? new DOMException("failed", "NotReadableError"));
    reader.readAsDataURL(picture);
  });
}

/** The picture in a data URL of an exported conversation; null if it is none. */
export function pictureOf(url: unknown): Blob | null {
  const found = typeof url === "string" ? /^data:([a-z/]+);base64,([A-Za-z0-9+/=]*)$/.exec(url) : null;
  if (!found || !isPicture(found[1] ?? "")) return null;
  try {
    const bytes = Uint8Array.from(atob(found[2] ?? ""), (letter) => letter.charCodeAt(0));
    return bytes.length && bytes.length <= MOST_BYTES ? new Blob([bytes], { type: found[1] }) : null;
  } catch {
    return null;
  }
}
