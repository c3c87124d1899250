import type { Client } from "./client";
import { int } from "./format";
import type { BarPart, Status } from "./protocol";
import { Meter, Progress, StatusMark } from "./ui";

const ENGINE: Record<BarPart["engine"], [Status, string]> = {
  unloaded: ["none", "no model"],
  loading: ["none", "loading"],
  idle: ["ok", "idle"],
  busy: ["none", "busy"],
  waiting: ["warn", "waiting"],
  stopping: ["warn", "stopping"],
};

export function StopButton({ client, keys }: { client: Client; keys?: boolean }) {
  const idle = !client.stoppable.value;
  const stop = () => {
    client.stop();
    client.say(idle ? "Nothing was running." : "Stop requested.");
  };
  return (
    <button
      type="button"
      class="btn stop"
      aria-disabled={idle ? "true" : undefined}
      title="Stop (works during prefill)"
      onClick={stop}
    >
      <span class="sq" aria-hidden="true" />
      Stop {keys && <kbd>Esc</kbd>}
    </button>
  );
}

function EngineState({ client, bar }: { client: Client; bar: BarPart | null }) {
  if (!client.alive.value) return <StatusMark status="bad">kernel gone; run the cell again</StatusMark>;
  if (!bar) return <StatusMark status="none">waiting for the kernel</StatusMark>;
  const [status, word] = ENGINE[bar.engine];
  const named = bar.engine === "busy" || bar.engine === "waiting";
  const said = named ? bar.holder ?? word : bar.holder ? `${word}: ${bar.holder}` : word;
  const progress = bar.engine === "waiting" ? null : bar.progress;
  return (
    <>
      <StatusMark status={status}>{said}</StatusMark>
      {progress && (
        <>
          <Progress label={progress.label} done={progress.done} total={progress.total} />
          <span class="num small">
            {!said.includes(progress.label) && `${progress.label} `}
            {int(progress.done)}
            {progress.total !== null && ` / ${int(progress.total)}`}
          </span>
        </>
      )}
    </>
  );
}

export function Bar({ client }: { client: Client }) {
  const bar = client.told.bar.value;
  return (
    <header class="bar">
      <div class="bar-items">
        {bar?.session && (
          <span class="bar-item">
            <span class="k">Session</span> <b class="clip">{bar.session}</b> {bar.run && <span class="mono">{bar.run}</span>}
          </span>
        )}
        <span class="bar-item">
          <span class="k">Model</span> <span class="clip">{bar?.model ?? "none"}</span>
          {bar?.quantisation && <span class="mono">{bar.quantisation}</span>}
        </span>
        {bar && bar.context_total > 0 && (
          <span class="bar-item">
            <span class="k">Context</span>
            <Meter label="Context used" value={bar.context_used} max={bar.context_total} />
            <span class="num">
              {int(bar.context_used)} / {int(bar.context_total)} tokens
            </span>
          </span>
        )}
        <span class="bar-item">
          <span class="k">Engine</span> <EngineState client={client} bar={bar} />
        </span>
      </div>
      <StopButton client={client} keys />
    </header>
  );
}

/** What the kernel wants said to all panels. */
export function Notice({ client }: { client: Client }) {
  const notice = client.told.bar.value?.notice;
  if (!notice) return null;
  return (
    <div class="notice small" role="status">
      <StatusMark status={notice.status} wrap>
        {notice.text}
      </StatusMark>
    </div>
  );
}

