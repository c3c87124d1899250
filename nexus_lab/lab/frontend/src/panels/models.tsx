/** Which models there are, which of them fits in memory, and what the loaded one can do. */
import type { Client } from "../client";
import { bytes, count, fixed, int, NONE } from "../format";
import type { BarPart, ModelRow, ModelsPart } from "../protocol";
import { Box, Button, Empty, Field, NumberField, Problem, Progress, StatusMark, Table, TextField, useAction, useReply } from "../ui";

function Standing({ row }: { row: ModelRow }) {
  if (row.error) return <StatusMark status="bad" title={row.error.message}>{row.error.type}</StatusMark>;
  if (row.declines.length) {
    return <StatusMark status="warn">{row.loaded ? "loaded, " : ""}{int(row.declines.length)} declined</StatusMark>;
  }
  return row.loaded ? <StatusMark status="ok">loaded</StatusMark> : <span class="muted">{NONE}</span>;
}

function ModelsTable({ part, nCtx, chosen, onChoose }: { part: ModelsPart; nCtx: number; chosen: ModelRow | null; onChoose: (path: string) => void }) {
  const tight = (row: ModelRow) =>
    row.memory_bytes !== null && part.memory_free_bytes !== null && !row.loaded && row.memory_bytes > part.memory_free_bytes;
  return (
    <Table
      label="Models"
      rows={part.rows}
      rowKey={(row) => row.path}
      selected={new Set(chosen ? [chosen.path] : [])}
      onSelect={(row) => onChoose(row.path)}
      height={520}
      columns={[
        { head: "Model", class: "anywhere", cell: (row) => <><b>{row.name}</b> {row.source !== row.name && <span class="muted tiny">{row.source}</span>}</> },
        { head: "Weights", class: "mono nowrap", cell: (row) => row.quantisation ?? NONE },
        { head: "Architecture", headClass: "opt", class: "opt", cell: (row) => row.architecture ?? NONE },
        {
          head: <>Layers × heads<br /><span class="u">of them KV</span></>,
          right: true,
          cell: (row) => (row.n_layer === null ? NONE : `${int(row.n_layer)} × ${int(row.n_head)} (${int(row.n_head_kv)})`),
        },
        { head: <>Trained to<br /><span class="u">tokens</span></>, right: true, headClass: "opt", class: "opt", cell: (row) => int(row.n_ctx_train) },
        { head: "File", right: true, cell: (row) => bytes(row.size_bytes) },
        {
          head: <>Memory<br /><span class="u">at {int(nCtx)} tokens</span></>,
          right: true,
          cell: (row) => (tight(row) ? <StatusMark status="warn" title="more than is free">{bytes(row.memory_bytes)}</StatusMark> : bytes(row.memory_bytes)),
        },
        { head: "State", cell: (row) => <Standing row={row} /> },
      ]}
    />
  );
}

/** A load or a measurement while it runs. */
function Running({ bar }: { bar: BarPart | null }) {
  if (!bar || (bar.engine !== "loading" && !bar.progress)) return null;
  const { progress } = bar;
  return (
    <div class="stack tight" role="status">
      <div class="row small">
        <b>{progress?.label ?? bar.holder ?? bar.engine}</b>
        <span class="grow" />
        {progress && (
          <span class="num muted">
            {int(progress.done)}
            {progress.total !== null && ` of ${int(progress.total)}`}
          </span>
        )}
      </div>
      {progress && (
        <div class="wide-progress">
          <Progress label={progress.label} done={progress.done} total={progress.total} />
        </div>
      )}
    </div>
  );
}

function LoadBox({ client, part, row }: { client: Client; part: ModelsPart; row: ModelRow | null }) {
  const context = client.keep<number | null>("models.n_ctx", null);
  const threads = client.keep<number | null>("models.threads", null);
  const load = useAction(client, "models.load");
  const unload = useAction(client, "models.unload");
  const nCtx = context.value ?? part.n_ctx;
  const nThreads = threads.value ?? part.threads;
  const same = row?.loaded && nCtx === part.n_ctx && nThreads === part.threads;
  const start = async () => {
    if (!row || load.busy) return;
    const done = await load.run({ path: row.path, n_ctx: nCtx, threads: nThreads });
    if (done === null) return;
    context.value = threads.value = null;
    client.say(`${row.name} is loaded.`);
  };
  const over = row?.n_ctx_train && nCtx > row.n_ctx_train ? row.n_ctx_train : null;
  const changed = context.value !== null || threads.value !== null;
  return (
    <Box title="Load" note={row ? row.name : "choose a model"}>
      <div class="stack close">
        <div class="cols half">
          <Field label="Context, tokens">
            <NumberField value={nCtx} min={128} step={256} onValue={(value) => (context.value = Math.round(value))} />
          </Field>
          <Field label="Threads">
            <NumberField value={nThreads} min={1} max={256} step={1} onValue={(value) => (threads.value = Math.round(value))} />
          </Field>
        </div>
        {over && (
          <StatusMark status="warn" wrap>
            {row?.name} was trained to {int(over)} tokens.
          </StatusMark>
        )}
        <div class="row">
          <Button primary disabled={!row || Boolean(row.error) || same || load.busy} onClick={() => void start()}>
            {load.busy ? "Loading…" : row?.loaded ? "Load again" : "Load"}
          </Button>
          <Button disabled={!part.rows.some(({ loaded }) => loaded) || unload.busy} onClick={() => void unload.run()}>
            Unload
          </Button>
          <span class="small muted num">
            {part.memory_free_bytes === null ? "" : `${bytes(part.memory_free_bytes)} free`}
            {changed ? "; not applied before Load" : ""}
          </span>
        </div>
        <Running bar={client.told.bar.value} />
        <Problem fault={load.fault ?? unload.fault} />
      </div>
    </Box>
  );
}

function DetailBox({ row }: { row: ModelRow }) {
  return (
    <Box title={row.name} note={row.quantisation ?? undefined}>
      {row.error && <Problem fault={row.error} />}
      <dl class="kv">
        <dt>File</dt>
        <dd class="mono">{row.path}</dd>
        <dt>Licence</dt>
        <dd>{row.license ?? "not stated in the file"}</dd>
        <dt>Architecture</dt>
        <dd>{row.architecture ?? NONE}</dd>
      </dl>
      {row.declines.length > 0 && (
        <ul class="declines">
          {row.declines.map(({ what, decline }) => (
            <li key={what} class="small">
              <StatusMark status="warn" wrap>
                {what} declined: {decline.reason}
              </StatusMark>
              <div class="muted">{decline.instead}</div>
            </li>
          ))}
        </ul>
      )}
      {row.loaded && row.declines.length === 0 && (
        <p class="small able">
          <StatusMark status="ok" wrap>splicing, shifting and attention capture all work with this model</StatusMark>
        </p>
      )}
    </Box>
  );
}

function SpeedBox({ client, part }: { client: Client; part: ModelsPart }) {
  const measure = useAction(client, "models.measure");
  const loaded = part.rows.some((row) => row.loaded);
  const { speed } = part;
  return (
    <Box title="Speed on this machine" note={speed ? `${count(speed.n_tokens, "token")}, ${count(part.threads, "thread")}` : undefined}>
      {speed ? (
        <div class="speeds">
          <div>
            <span class="k small">Prefill</span>
            <div class="v num">{fixed(speed.prefill_tps, 0)} <small>tokens/s</small></div>
          </div>
          <div>
            <span class="k small">Decode</span>
            <div class="v num">{fixed(speed.decode_tps, 1)} <small>tokens/s</small></div>
          </div>
        </div>
      ) : (
        <Empty title="Not measured" tight>{loaded ? "Takes a few seconds." : "Load a model first."}</Empty>
      )}
      <div class="row acts">
        <Button disabled={!loaded || measure.busy} onClick={() => void measure.run()}>
          {measure.busy ? "Measuring…" : speed ? "Measure again" : "Measure"}
        </Button>
      </div>
      <Problem fault={measure.fault} />
    </Box>
  );
}

function FoldersBox({ client, part }: { client: Client; part: ModelsPart }) {
  const path = client.keep("models.folder", "");
  const add = useAction(client, "models.add_folder");
  const run = async () => {
    if (!path.value.trim() || add.busy) return;
    if ((await add.run({ path: path.value.trim() })) !== null) path.value = "";
  };
  return (
    <Box title="Folders" note="searched for GGUF files">
      <div class="stack close">
        {part.folders.length > 0 && (
          <ul class="small mono">
            {part.folders.map((folder) => <li key={folder} class="anywhere">{folder}</li>)}
          </ul>
        )}
        <Field label="Another folder">
          <TextField value={path.value} placeholder="~/models" onValue={(value) => (path.value = value)} onEnter={() => void run()} />
        </Field>
        <div class="row">
          <Button disabled={!path.value.trim() || add.busy} onClick={() => void run()}>Add folder</Button>
        </div>
        <Problem fault={add.fault} />
      </div>
    </Box>
  );
}

export function ModelsPanel({ client }: { client: Client }) {
  const part = client.told.models.value;
  const picked = client.keep<string | null>("models.chosen", null);
  const refresh = useAction(client, "models.refresh");
  const wanted = client.keep<number | null>("models.n_ctx", null).value;
  const asked = wanted === null || wanted === part?.n_ctx ? null : { n_ctx: wanted };
  // Where it cannot be told, the table keeps the length that is set, and says so.
  const [estimate] = useReply<{ rows: ModelRow[] }>(client, "models.estimate", asked, part?.rows);
  if (!part) return null;
  const chosen = part.rows.find(({ path }) => path === picked.value) ?? part.rows.find(({ loaded }) => loaded) ?? part.rows[0] ?? null;
  return (
    <div class="cols mdl">
      <div class="stack">
        <Box
          title="Models"
          note={count(part.rows.length, "file")}
          tools={<Button disabled={refresh.busy} onClick={() => void refresh.run()}>{refresh.busy ? "Searching…" : "Search again"}</Button>}
          flush
        >
          {part.rows.length === 0 ? (
            <Empty title="No model was found">Add a folder that holds GGUF files.</Empty>
          ) : (
            <ModelsTable
              part={estimate ? { ...part, rows: estimate.rows } : part}
              nCtx={estimate && wanted ? wanted : part.n_ctx}
              chosen={chosen}
              onChoose={(path) => (picked.value = path)}
            />
          )}
          <Problem fault={refresh.fault} />
        </Box>
        {chosen && <DetailBox row={chosen} />}
      </div>
      <div class="stack">
        <LoadBox client={client} part={part} row={chosen} />
        <SpeedBox client={client} part={part} />
        <FoldersBox client={client} part={part} />
      </div>
    </div>
  );
}
