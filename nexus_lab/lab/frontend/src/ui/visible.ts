/** A token's text with what cannot be seen spelled out; outer spaces go where they are not all there is. */
export function visibleText(text: string): string {
  const spelled = text.replace(/[\n\r\t]/g, (mark) => JSON.stringify(mark).slice(1, -1));
  return spelled.trim() || "␣".repeat(Math.max(1, Math.min(3, spelled.length)));
}
