/** The heatmap with its focus cell: keys and mouse move it, the read-out and the live region speak it. */
import type { Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { drawColorBar, VIK, VIRIDIS } from "../../canvas/colormap";
import { cellAt, clampCell, drawHeatmap, isNoise, layoutHeatmap, readCell, walkCells, type HeatmapCell } from "../../canvas/heatmap";
import { numbers, takeKey } from "../../canvas/walk";
import type { CanvasTheme } from "../../canvas/theme";
import type { Client } from "../../client";
import { Canvas, Table, useWidth, type Column } from "../../ui";
import type { Frame } from "./film";
import { cellParts, cellText, driftNumber, figureData, figureRange, measureWords, noiseWords, type Measure, type RangeKind, type Tensor } from "./reading";

const BAR = { width: 140, height: 10 };

export interface FigureProps {
  client: Client;
  frame: Frame;
  tensor: Tensor;
  measure: Measure;
  range: RangeKind;
}

export function Figure({ client, frame, tensor, measure, range, cell }: FigureProps & { cell: Signal<HeatmapCell> }) {
  const [ref, width] = useWidth<HTMLDivElement>(760);
  const { rows, cols, col_label: colLabel } = frame.reply;
  const focus = clampCell(cell.value, rows, cols);
  const data = useMemo(
    () => figureData(frame, measure, range, focus),
    [frame, measure, range, focus.layer, focus.head],
  );
  const layout = layoutHeatmap(width, rows, cols);
  const draw = useMemo(
    () => (ctx: CanvasRenderingContext2D, theme: CanvasTheme) => drawHeatmap(ctx, data, theme, { width, height: layout.height }),
    [data, width, layout.height],
  );
  const go = (next: HeatmapCell) => {
    cell.value = next;
    client.say(cellText(next, readCell(data, next), colLabel, tensor));
  };
  const reading = readCell(data, focus);
  const parts = cellParts(focus, reading, colLabel, tensor);
  const noise = noiseWords(frame);
  return (
    <>
      <div
        class="hm"
        ref={ref}
        tabIndex={0}
        role="application"
        aria-roledescription="heatmap"
        aria-label={`Drift by layer and ${colLabel}. ${cellText(focus, reading, colLabel, tensor)}. Arrow keys move the cell; Home and End jump.`}
        onKeyDown={(event) => {
          const next = walkCells(focus, event.key, rows, cols);
          if (!next) return;
          takeKey(event);
          go(next);
        }}
        onPointerDown={(event) => {
          const box = event.currentTarget.getBoundingClientRect();
          const hit = cellAt(layout, event.clientX - box.left, event.clientY - box.top);
          if (hit) go(hit);
        }}
      >
        <Canvas client={client} width={width} height={layout.height} draw={draw} />
      </div>
      <div class="num read">
        <b>{parts.where}</b>: {parts.what}
        {parts.value !== null && (
          <>
            {" "}
            <b>{parts.value}</b>
          </>
        )}
        {parts.rest}
      </div>
      {noise && <div class="num small muted">{noise}</div>}
    </>
  );
}

function Mark({ color, path, ink, children }: {
  color: string | undefined;
  path: string;
  ink: string;
  children: ComponentChildren;
}) {
  return (
    <span class="lg">
      <svg width="16" height="12" aria-hidden="true">
        {color ? (
          <rect width="16" height="12" fill={color} />
        ) : (
          <rect x=".5" y=".5" width="15" height="11" fill="none" stroke="var(--nl-edge)" />
        )}
        <path d={path} fill={color ? ink : "none"} stroke={color ? "none" : ink} />
      </svg>
      {children}
    </span>
  );
}

/** Colour bar with its ends, and the marks for no value and for values beyond the range. */
export function FigureLegend({ client, frame, tensor, measure, range }: FigureProps) {
  const map = measure === "signed" ? VIK : VIRIDIS;
  const [low, high] = figureRange(frame.reply, measure, range);
  const draw = useMemo(() => (ctx: CanvasRenderingContext2D) => drawColorBar(ctx, map, BAR), [map]);
  return (
    <div class="row hmleg">
      <span class="row bar-of">
        <span class="tiny num">{driftNumber(low)}</span>
        <Canvas client={client} {...BAR} draw={draw} class="ramp" />
        <span class="tiny num">{driftNumber(high)}</span>
        <span class="small muted">{measureWords(tensor, measure)}</span>
      </span>
      <Mark color={undefined} path="M5 3l6 6M11 3l-6 6" ink="var(--nl-text)">
        no value
      </Mark>
      <Mark color={map.css[map.css.length - 1]} path="M8 2h7v7z" ink={map.endInk}>
        above range
      </Mark>
      {measure === "signed" && (
        <Mark color={map.css[0]} path="M8 10h7v-7z" ink={map.endInk}>
          below range
        </Mark>
      )}
      {frame.floor && (
        <Mark color="#000" path="M6 4h4v4H6z" ink="#fff">
          within its noise floor
        </Mark>
      )}
    </div>
  );
}


export function FigureTable({ frame, measure, range }: FigureProps) {
  const { rows, cols, col_label: colLabel } = frame.reply;
  const [low, high] = figureRange(frame.reply, measure, range);
  const short = colLabel === "KV head" ? "head" : "q head";
  const cell = (index: number) => {
    const value = frame.values[index]!;
    if (Number.isNaN(value)) return "no value";
    return `${driftNumber(value)}${value > high ? " ▲" : value < low ? " ▼" : ""}${isNoise(frame, index) ? " ·" : ""}`;
  };
  const columns: Column<number>[] = [
    { head: "Layer", cell: (layer) => layer },
    ...numbers(0, cols).map((head) => ({
      head: `${short} ${head}`,
      right: true,
      cell: (layer: number) => cell(layer * cols + head),
    })),
  ];
  return (
    <div class="hmtable" tabIndex={0} role="region" aria-label="Drift values">
      <Table label="Drift values" columns={columns} rows={numbers(0, rows)} rowKey={(layer) => layer} height={300} />
    </div>
  );
}
