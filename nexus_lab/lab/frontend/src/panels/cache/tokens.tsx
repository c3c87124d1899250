/** Overview of all tokens, with a window that is dragged or moved by keys, and the tokens in it. */
import type { Signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { drawStrip, drawStripWindow, STRIP_HEIGHT, stripIndex, type StripWindow } from "../../canvas/strip";
import type { CanvasTheme } from "../../canvas/theme";
import { takeKey, walk } from "../../canvas/walk";
import type { Client } from "../../client";
import { int } from "../../format";
import type { CachePart } from "../../protocol";
import { Box, Canvas, Empty, Legend, Problem, useWidth } from "../../ui";
import { TokenRow, windowLabels, windowSize, windowStart } from "./token_window";
import type { TokenSource, TokenStates } from "./tokens_source";
import { countWords } from "./words";

/** Tokens that the window moves by with an arrow, and with a page key. */
const STEP = 8;
const PAGE = 200;

interface StripProps {
  client: Client;
  tokens: TokenStates;
  extent: number;
  window: StripWindow;
  width: number;
  onMove: (centre: number) => void;
}

function Strip({ client, tokens, extent, window, width, onMove }: StripProps) {
  const draw = useMemo(() => {
    const { states, positions, segments } = tokens;
    const data = { states, positions, extent, starts: segments.map((segment) => segment.start) };
    return (ctx: CanvasRenderingContext2D, theme: CanvasTheme) => drawStrip(ctx, data, theme, { width, height: STRIP_HEIGHT });
  }, [tokens, extent, width]);
  const drawWindow = useMemo(
    () => (ctx: CanvasRenderingContext2D, theme: CanvasTheme) =>
      drawStripWindow(ctx, window, extent, theme, { width, height: STRIP_HEIGHT }),
    [window.start, window.stop, extent, width],
  );
  const centre = Math.floor((window.start + window.stop) / 2);
  const follow = (event: PointerEvent) => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    onMove(stripIndex(event.clientX - box.left, extent, width));
  };
  return (
    <div
      class="strip"
      tabIndex={0}
      role="slider"
      aria-label="Window of tokens"
      aria-valuemin={0}
      aria-valuemax={Math.max(0, tokens.states.length - 1)}
      aria-valuenow={window.start}
      aria-valuetext={`logical ${int(window.start)} to ${int(window.stop - 1)}`}
      onPointerDown={(event) => {
        if (event.button !== 0) return;
        event.currentTarget.setPointerCapture?.(event.pointerId);
        follow(event);
      }}
      onPointerMove={(event) => {
        if (event.buttons & 1) follow(event);
      }}
      onKeyDown={(event) => {
        const next = walk(event.key, centre, tokens.states.length, STEP, PAGE);
        if (next === null) return;
        takeKey(event);
        onMove(next);
      }}
    >
      <Canvas client={client} width={width} height={STRIP_HEIGHT} draw={draw} />
      <Canvas client={client} width={width} height={STRIP_HEIGHT} draw={drawWindow} class="over-strip" />
    </div>
  );
}

export function TokenBox({ client, part, source, centre }: {
  client: Client;
  part: CachePart;
  source: TokenSource;
  centre: Signal<number>;
}) {
  const [ref, width] = useWidth<HTMLDivElement>(1100);
  const tokens = source.states.value;
  const size = windowSize(width);
  const total = tokens?.states.length ?? 0;
  const start = windowStart(centre.value, size, total);
  const stop = Math.min(total, start + size);
  const extent = Math.max(total, part.ops[part.ops.length - 1]?.logical ?? 0, 1);
  useEffect(() => {
    if (stop > start) source.wantPieces(start, stop);
  }, [tokens, start, stop]);
  const labels = tokens ? windowLabels(tokens.segments, start, stop) : "";
  const move = (next: number) => {
    centre.value = next;
    const first = windowStart(next, size, total);
    client.say(`Tokens ${int(first)} to ${int(Math.min(total, first + size) - 1)}.`);
  };
  const legend = (
    <span class="row legend">
      <Legend kind="append">C computed</Legend>
      <Legend kind="splice">S spliced</Legend>
      <Legend kind="repair">R repaired</Legend>
      <Legend kind="drop">D dropped</Legend>
    </span>
  );
  const counts = (
    <span class="num counts">
      <b>{int(part.counts.active)}</b>
      {countWords(part.counts)}
    </span>
  );
  return (
    <Box title="Tokens" note={counts} tools={legend}>
      <div ref={ref}>
        <Problem fault={source.problem.value} />
        {tokens && total > 0 ? (
          <>
            <Strip client={client} tokens={tokens} extent={extent} window={{ start, stop }} width={width} onMove={move} />
            <div class="row small win">
              <span>
                <b class="num">
                  Logical {int(start)}–{int(stop - 1)}
                </b>{" "}
                <span class="muted">{labels}</span>
              </span>
              <span class="grow" />
              <span class="muted">upper number: position in the cache; lower: logical index</span>
            </div>
            <TokenRow tokens={tokens} pieces={source.pieces.value} start={start} stop={stop} />
          </>
        ) : (
          <Empty title={tokens ? "No tokens at this step" : "Tokens are on their way"} tight />
        )}
      </div>
    </Box>
  );
}
