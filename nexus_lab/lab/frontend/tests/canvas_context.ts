/** A 2D context that notes what was drawn, for tests without a browser. */
export interface Mark {
  kind: string;
  args: unknown[];
  fill: unknown;
  stroke: unknown;
}

export interface RecordingContext {
  ctx: CanvasRenderingContext2D;
  marks: Mark[];
  of(kind: string): Mark[];
  texts(): string[];
}

export function recordingContext(): RecordingContext {
  const marks: Mark[] = [];
  const state: Record<string, unknown> = {};
  const ctx = new Proxy(state, {
    get(target, name: string) {
      if (name in target) return target[name];
      if (name === "measureText") return (text: string) => ({ width: 6 * text.length });
      if (name === "createPattern") return () => null;
      return (...args: unknown[]) => {
        marks.push({ kind: name, args, fill: target.fillStyle, stroke: target.strokeStyle });
      };
    },
    set(target, name: string, value) {
      target[name] = value;
      return true;
    },
  }) as unknown as CanvasRenderingContext2D;
  const of = (kind: string) => marks.filter((mark) => mark.kind === kind);
  return { ctx, marks, of, texts: () => of("fillText").map((mark) => String(mark.args[0])) };
}
