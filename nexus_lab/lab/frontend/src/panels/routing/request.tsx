/** A request to route by hand, typed or picked from a file. Nothing is run. */
import { useRef } from "preact/hooks";
import type { Signal } from "@preact/signals";
import type { Client } from "../../client";
import { count, int } from "../../format";
import type { DecisionRow, RoutingPart } from "../../protocol";
import { Box, Button, Check, Empty, Field, NumberField, Problem, Table, useAction } from "../../ui";

interface Picked {
  file: string;
  requests: string[];
}

function Picker({ picked, request }: { picked: Signal<Picked | null>; request: Signal<string> }) {
  const list = picked.value;
  if (!list) return null;
  return (
    <div class="box">
      <div class="hd small">
        <b class="clip">{list.file}</b>
        <span class="muted">{count(list.requests.length, "request")}</span>
        <span class="grow" />
        <Button quiet onClick={() => (picked.value = null)}>
          Close list
        </Button>
      </div>
      {list.requests.length === 0 ? (
        <Empty title="No request in this file" tight>
          It takes one request a line, or JSON lines with a field "request", "query" or "text".
        </Empty>
      ) : (
        <Table
          label={`Requests of ${list.file}`}
          rows={list.requests.map((text, index) => ({ text, index }))}
          rowKey={(row) => row.index}
          selected={new Set(list.requests.flatMap((text, index) => (text === request.value ? [index] : [])).slice(0, 1))}
          onSelect={(row) => (request.value = row.text)}
          height={168}
          columns={[
            { head: "#", right: true, width: 44, cell: (row) => int(row.index + 1) },
            { head: "Request", class: "clipped", cell: (row) => <span title={row.text}>{row.text}</span> },
          ]}
        />
      )}
    </div>
  );
}

export function RequestBox({ client, part, topK, onDecision }: {
  client: Client;
  part: RoutingPart;
  topK: Signal<number | null>;
  onDecision: (decision: DecisionRow) => void;
}) {
  const request = client.keep("routing.request", "");
  const conversation = client.keep("routing.conversation", true);
  const picked = client.keep<Picked | null>("routing.picked", null);
  const route = useAction<DecisionRow>(client, "routing.route");
  const read = useAction<{ requests: string[] }>(client, "routing.read_requests");
  const file = useRef<HTMLInputElement>(null);
  const empty = request.value.trim() === "";

  const send = async () => {
    if (empty || route.busy) return;
    const params = { request: request.value, with_conversation: conversation.value, top_k: topK.value ?? part.top_k };
    const decision = await route.run(params);
    if (decision) onDecision(decision);
  };
  const open = async (input: HTMLInputElement) => {
    const chosen = input.files?.[0];
    input.value = "";
    if (!chosen) return;
    const found = await read.run({ text: await chosen.text() });
    if (found) picked.value = { file: chosen.name, requests: found.requests };
  };
  return (
    <Box>
      <div class="stack close">
        <Field label="Request">
          <textarea
            rows={2}
            value={request.value}
            placeholder="What a user would say"
            onInput={(event) => (request.value = event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
              event.preventDefault();
              event.stopPropagation();
              void send();
            }}
          />
        </Field>
        <div class="row">
          <Button primary disabled={empty || route.busy} onClick={() => void send()}>
            {route.busy ? "Routing…" : "Route"}
          </Button>
          <Button onClick={() => file.current?.click()}>From file…</Button>
          <input
            ref={file}
            class="sr"
            type="file"
            accept=".txt,.jsonl,.ndjson,.json,text/plain"
            aria-label="File with requests"
            tabIndex={-1}
            onChange={(event) => void open(event.currentTarget)}
          />
          <label class="c">
            Candidates k{" "}
            <NumberField
              value={topK.value ?? part.top_k}
              min={2}
              max={32}
              step={1}
              width={56}
              onValue={(value) => (topK.value = Math.round(value))}
            />
          </label>
          <Check checked={conversation.value} onCheck={(checked) => (conversation.value = checked)}>
            with the conversation <span class="muted">({count(part.turns, "turn")})</span>
          </Check>
          <span class="grow" />
          <span class="muted small">Routes only; runs nothing</span>
        </div>
        <Picker picked={picked} request={request} />
        <Problem fault={route.fault ?? read.fault} />
      </div>
    </Box>
  );
}
