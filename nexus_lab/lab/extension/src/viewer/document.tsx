/** The file type `*.nexus.json` and its viewer: a document widget, read-only, without a kernel. */
import type { ILayoutRestorer, JupyterFrontEnd } from "@jupyterlab/application";
import { WidgetTracker } from "@jupyterlab/apputils";
import { ABCWidgetFactory, DocumentWidget, type DocumentRegistry } from "@jupyterlab/docregistry";
import { ReactWidget } from "@jupyterlab/ui-components";
import * as React from "react";
import { nexusIcon } from "../icon";
import { useTheme } from "../theme";
import { readTrace, type Reading } from "./trace";
import { Refused, TraceView } from "./view";

const FILE_TYPE = "nexus-trace";
const FACTORY = "nexus_lab trace";

type TraceDocument = DocumentWidget<ReactWidget>;

class TraceFactory extends ABCWidgetFactory<TraceDocument> {
  protected createNewWidget(context: DocumentRegistry.Context): TraceDocument {
    const content = ReactWidget.create(<TraceFile context={context} />);
    content.addClass("nl-trace-document");
    return new DocumentWidget({ content, context });
  }
}

function TraceFile({ context }: { context: DocumentRegistry.Context }): React.JSX.Element {
  const [reading, setReading] = React.useState<Reading | null>(null);
  React.useEffect(() => {
    const read = (): void => setReading(readTrace(context.model.toString()));
    void context.ready.then(() => {
      read();
      context.model.contentChanged.connect(read);
    });
    return () => {
      if (!context.isDisposed) {
        context.model.contentChanged.disconnect(read);
      }
    };
  }, [context]);
  return (
    <div className="nl nl-trace" data-theme={useTheme()}>
      {reading === null ? (
        <p className="nl-empty">Reading the trace</p>
      ) : reading.ok ? (
        <TraceView trace={reading.trace} />
      ) : (
        <Refused refusal={reading.refusal} />
      )}
    </div>
  );
}

export function addTraceViewer(app: JupyterFrontEnd, restorer: ILayoutRestorer | null): void {
  app.docRegistry.addFileType({
    name: FILE_TYPE,
    displayName: "nexus_lab trace",
    extensions: [".nexus.json"],
    mimeTypes: ["application/json"],
    contentType: "file",
    fileFormat: "text",
    icon: nexusIcon,
  });
  const factory = new TraceFactory({
    name: FACTORY,
    label: "nexus_lab trace",
    modelName: "text",
    fileTypes: [FILE_TYPE],
    defaultFor: [FILE_TYPE],
    readOnly: true,
  });
  const tracker = new WidgetTracker<TraceDocument>({ namespace: "nexus-lab-trace" });
  factory.widgetCreated.connect((_sender, widget) => {
    widget.title.icon = nexusIcon;
    widget.context.pathChanged.connect(() => void tracker.save(widget));
    void tracker.add(widget);
  });
  app.docRegistry.addWidgetFactory(factory);
  if (restorer !== null) {
    void restorer.restore(tracker, {
      command: "docmanager:open",
      args: (widget) => ({ path: widget.context.path, factory: FACTORY }),
      name: (widget) => widget.context.path,
    });
  }
}
