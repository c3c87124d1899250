/** What differs between A and B: the measures, then the paired spans. */
import { Fragment } from "preact";
import type { Signal } from "@preact/signals";
import type { Client } from "../../client";
import { count, fixed, int, msNumber, NONE, percent, signed } from "../../format";
import type { Comparison } from "../../protocol";
import { Box, Button, Check, Empty, Problem, useReply } from "../../ui";
import { byTurn, differs, type Choice, type Pair } from "./pairs";

function amount(value: number | null, unit: string): string {
  if (value === null) return NONE;
  if (unit === "ms" && Math.abs(value) >= 9999.5) return `${fixed(value / 1000, 2)} s`;
  if (unit === "ms") return `${msNumber(value)} ms`;
  if (unit === "nats") return `${fixed(value, 4)} nats`;
  const text = Number.isInteger(value) ? int(value) : fixed(value, Math.abs(value) >= 100 ? 1 : 3);
  return unit ? `${text} ${unit}` : text;
}

/** "−802 ms (−67 %)". */
export function change(a: number | null, b: number | null, unit: string): string {
  if (a === null && b === null) return NONE;
  if (a === null) return "only in B";
  if (b === null) return "only in A";
  const text = signed(b - a, (size) => amount(size, unit));
  if (a === 0 || b === a || unit === "nats") return text;
  return `${text} (${signed((b - a) / Math.abs(a), (share) => percent(share, share < 0.1 ? 1 : 0))})`;
}

/** What tells A from B in a head: their policies, or their names where these are alike. */
function useNames(client: Client, { a, b }: Comparison): [string, string] {
  const policy = (run: string) => client.told.session.value?.runs.find((row) => row.run === run)?.policy ?? null;
  const [first, second] = [policy(a), policy(b)];
  return first !== null && second !== null && first !== second ? [first, second] : [a, b];
}

function Measures({ client, found }: { client: Client; found: Comparison }) {
  const [first, second] = useNames(client, found);
  return (
    <table aria-label="Measures of A and B">
      <thead>
        <tr>
          <th scope="col">Measure</th>
          <th scope="col" class="r">A <span class="u">{first}</span></th>
          <th scope="col" class="r">B <span class="u">{second}</span></th>
          <th scope="col" class="r">B − A</th>
        </tr>
      </thead>
      <tbody>
        {found.measures.map(({ name, unit, a, b }) => (
          <tr key={name}>
            <td>{name}</td>
            <td class="r num">{amount(a, unit)}</td>
            <td class="r num">{amount(b, unit)}</td>
            <td class="r num">
              <b>{change(a, b, unit)}</b>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Cells({ pair, full, head }: { pair: Pick<Pair, "a_ms" | "b_ms">; full: number; head?: boolean }) {
  const { a_ms: a, b_ms: b } = pair;
  const width = (value: number) => ({ width: `${(100 * value) / full}%` });
  const text = change(a, b, "ms").replace(/ \(.*\)$/, "");
  return (
    <>
      <td class="r num">{msNumber(a)}</td>
      <td class="r num">{msNumber(b)}</td>
      <td>
        <div class="cmpbar">
          {a !== null && <i class="a" style={width(a)} />}
          {b !== null && <i class="b" style={width(b)} />}
        </div>
      </td>
      <td class={`r num ${differs(pair) ? "" : "muted"}`}>{head ? <b>{text}</b> : text}</td>
    </>
  );
}

/** The end of the bars: a round number of ms that holds the longest turn. */
function fullBar(values: readonly (number | null)[]): number {
  const most = Math.max(1, ...values.map((value) => value ?? 0));
  const scale = 10 ** Math.floor(Math.log10(most));
  return Math.ceil((2 * most) / scale) * (scale / 2);
}

function Pairs({ client, found }: { client: Client; found: Comparison }) {
  const only = client.keep("session.only", false);
  const opened = client.keep<readonly number[]>("session.turns", []);
  const turns = byTurn(found.pairs);
  const full = fullBar(turns.flatMap(({ a_ms, b_ms }) => [a_ms, b_ms]));
  const toggle = (turn: number) => {
    opened.value = opened.value.includes(turn) ? opened.value.filter((other) => other !== turn) : [...opened.value, turn];
  };
  const row = (pair: Pair, key: string, turn: boolean) => (
    <tr key={key}>
      <td class="num">{turn ? pair.turn : ""}</td>
      <td class="anywhere" style={{ paddingLeft: 8 + (turn ? 0 : 20) + 12 * pair.depth }}>{pair.name}</td>
      <Cells pair={pair} full={full} />
    </tr>
  );
  return (
    <table class="pairs" aria-label="Paired spans">
      <thead>
        <tr>
          <th scope="col">Turn</th>
          <th scope="col">Span</th>
          <th scope="col" class="r">A <span class="u">ms</span></th>
          <th scope="col" class="r">B <span class="u">ms</span></th>
          <th scope="col" class="bars-head">
            <span class="lg">
              <span class="two" aria-hidden="true"><i class="a" /><i class="b" /></span>A above B, to {int(full)} ms
            </span>
          </th>
          <th scope="col" class="r">B − A</th>
        </tr>
      </thead>
      <tbody>
        {only.value
          ? turns.flatMap(({ pairs }) => pairs.filter(differs)).map((pair, index) => row(pair, `${pair.turn} ${index}`, true))
          : turns.map((turn) => {
              const open = opened.value.includes(turn.turn);
              return (
                <Fragment key={turn.turn}>
                  <tr>
                    <td class="num"><b>{turn.turn}</b></td>
                    <td>
                      <Button quiet class="tog" aria-expanded={open} onClick={() => toggle(turn.turn)}>
                        {open ? "▾" : "▸"} all {count(turn.pairs.length, "span")}
                      </Button>
                    </td>
                    <Cells pair={turn} full={full} head />
                  </tr>
                  {open && turn.pairs.map((pair, index) => row(pair, `${turn.turn} ${index}`, false))}
                </Fragment>
              );
            })}
      </tbody>
    </table>
  );
}

function PairNote({ client, found }: { client: Client; found: Comparison }) {
  const pairs = byTurn(found.pairs).flatMap((turn) => turn.pairs);
  const small = pairs.filter((pair) => !differs(pair)).length;
  if (client.keep("session.only", false).value) {
    return <>{int(small)} of {count(pairs.length, "pair")} differ by 2 % or less and are hidden.</>;
  }
  return <>{count(pairs.length, "pair")}; {int(small)} of them differ by 2 % or less.</>;
}

export function CompareBox({ client, choice, version }: { client: Client; choice: Signal<Choice>; version: unknown }) {
  const { a, b } = choice.value;
  const both = a !== null && b !== null;
  const [found, problem] = useReply<Comparison>(client, "session.compare", both ? { a, b } : null, version);
  const only = client.keep("session.only", false);
  if (!both) {
    return (
      <Box title="Compare">
        <Empty title={a === null ? "Choose two runs" : `Choose a run to hold against ${a}`}>
          The first that is checked is A, the second B.
        </Empty>
      </Box>
    );
  }
  return (
    <Box
      title={`A ${a} against B ${b}`}
      note={found?.note}
      tools={
        <>
          <Button quiet onClick={() => (choice.value = { a: b, b: a })}>Swap</Button>
          <Check small checked={only.value} onCheck={(on) => (only.value = on)}>differences over 2 %</Check>
        </>
      }
      flush
      foot={found && <PairNote client={client} found={found} />}
    >
      <Problem fault={problem} />
      {found ? (
        <>
          <Measures client={client} found={found} />
          <div class="divider" />
          <Pairs client={client} found={found} />
        </>
      ) : (
        !problem && <Empty title="Comparing…" tight />
      )}
    </Box>
  );
}
