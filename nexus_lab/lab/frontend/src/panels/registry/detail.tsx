/** One tool: what the arguments are written over, beside the schema exactly as the model sees it. */
import type { Client } from "../../client";
import { bytes, count, int, percent } from "../../format";
import type { ToolDetail, ToolRow } from "../../protocol";
import { Box, Button, Empty, Problem, useReply } from "../../ui";

function Head({ title, what, size }: { title: string; what: string; size: string }) {
  return (
    <div class="row small part-head">
      <b>{title}</b>
      <span class="muted">{what}</span>
      <span class="grow" />
      <span class="num">{size}</span>
    </div>
  );
}

function Facts({ detail }: { detail: ToolDetail }) {
  const { block, examples, used } = detail;
  return (
    <dl class="kv">
      <dt>Compiled block</dt>
      <dd>{block ? `${int(block.tokens)} tokens, ${bytes(block.bytes)}, anchor ${int(block.anchor)}` : "none yet; made at the first splice"}</dd>
      <dt>Examples</dt>
      <dd>
        {examples.length === 0 ? "none" : count(examples.length, "request")}
        {examples.slice(0, 5).map((text) => (
          <div key={text} class="muted">
            “{text}”
          </div>
        ))}
        {examples.length > 5 && <div class="muted">and {int(examples.length - 5)} more</div>}
      </dd>
      <dt>Used</dt>
      <dd class="num">
        {int(used.count)} of {count(used.of, "recorded decision")}
        {used.of > 0 && ` (${percent(used.count / used.of)})`}
      </dd>
    </dl>
  );
}

export function DetailBox({ client, tool }: { client: Client; tool: ToolRow | null }) {
  const [detail, problem] = useReply<ToolDetail>(client, "registry.tool", tool && { name: tool.name }, tool);
  const request = client.keep("routing.request", "");
  if (!tool) {
    return (
      <Box title="Tool">
        <Empty title="No tool is chosen">Choose one in the table.</Empty>
      </Box>
    );
  }
  const saved =
    detail?.schema_tokens && detail.signature_tokens !== null ? 1 - detail.signature_tokens / detail.schema_tokens : null;
  const example = detail?.examples[0] ?? tool.description.split(/(?<=[.!?])\s/)[0] ?? tool.name;
  return (
    <section class="box detail" aria-label={`Tool ${tool.name}`}>
      <div class="hd">
        <h3 class="mono anywhere">{tool.name}</h3>
        <span class="muted small">{tool.server}</span>
        <span class="tag">{tool.read_only ? "reads" : "writes: asks first"}</span>
        <span class="grow" />
        <Button
          quiet
          title="Take a request for this tool to Routing"
          onClick={() => {
            request.value = example;
            client.panel.value = "routing";
          }}
        >
          Route to it
        </Button>
      </div>
      <div class="bd flush">
        {tool.description && <p class="small anywhere about">{tool.description}</p>}
        {tool.checks.map((check) => (
          <p key={check.text} class={`small st wrap about ${check.severity === "error" ? "bad" : "warn"}`}>
            <i aria-hidden="true">{check.severity === "error" ? "×" : "!"}</i>
            <span>{check.text}</span>
          </p>
        ))}
        <Problem fault={problem} />
        {detail ? (
          <>
            <Head title="Signature" what="what the arguments are written over" size={detail.signature_tokens === null ? "" : count(detail.signature_tokens, "token")} />
            <pre class="code wrap">{detail.signature}</pre>
            <Head
              title="Schema"
              what="exactly as the model sees it"
              size={detail.schema_tokens === null ? "" : `${count(detail.schema_tokens, "token")}${saved === null ? "" : `, signature −${percent(saved, 0)}`}`}
            />
            <pre class="code wrap schema" tabIndex={0} aria-label={`Schema of ${tool.name}`}>
              {detail.schema}
            </pre>
            <Facts detail={detail} />
          </>
        ) : (
          !problem && <Empty title="Reading the schema…" tight />
        )}
      </div>
    </section>
  );
}
