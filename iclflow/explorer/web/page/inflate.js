// Numbers inside a page: deflated, in base64.

/** @type {(text: string) => Promise<ArrayBuffer>} */
export async function inflated(text) {
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}
