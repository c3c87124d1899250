/** Splices of the run so far, declined ones with their reason. */
import { fixed, int, NONE } from "../../format";
import type { SplicePart } from "../../protocol";
import { Box, StatusMark } from "../../ui";

type Row = SplicePart["last"][number];

function sameAsRun(row: Row, part: SplicePart): boolean {
  const run = part.run;
  return row.turn === null && run !== null && run.settings.tool === row.tool && run.settings.n_past === row.n_past;
}

function Lines({ row, chosen }: { row: Row; chosen: boolean }) {
  const declined = row.declined;
  return (
    <>
      <tr class={`${chosen ? "sel" : ""} ${declined ? "more" : ""}`}>
        <td class="num">{row.turn ?? "try"}</td>
        <td class="mono">{row.tool}</td>
        <td class="r num">{int(row.n_past)}</td>
        <td class="r num" title={row.noise_floor === null ? undefined : `floor ${fixed(row.noise_floor, 4)}`}>
          {declined ? <StatusMark status="warn">declined</StatusMark> : row.dkl === null ? NONE : fixed(row.dkl, 4)}
        </td>
      </tr>
      {declined && (
        <tr>
          <td />
          <td colSpan={3} class="muted why">
            {declined.reason}; {declined.instead}
          </td>
        </tr>
      )}
    </>
  );
}

export function LastSplices({ part, run }: { part: SplicePart; run: string | null }) {
  return (
    <Box title="Last splices" note={run ? `run ${run}` : undefined} flush class="lastbox">
      {part.last.length === 0 ? (
        <div class="empty tight">Nothing was spliced in this run yet.</div>
      ) : (
        <div class="scroll lastrows">
          <table aria-label="Last splices">
            <thead>
              <tr>
                <th scope="col">Turn</th>
                <th scope="col">Block</th>
                <th scope="col" class="r">
                  n_past
                </th>
                <th scope="col" class="r">
                  D<sub>KL</sub> <span class="u">nats</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {part.last.map((row, index) => (
                <Lines key={index} row={row} chosen={sameAsRun(row, part)} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Box>
  );
}
