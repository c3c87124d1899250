import type { ISettingRegistry } from "@jupyterlab/settingregistry";
import { PLUGIN } from "./names";

export interface Defaults {
  k: number;
  tau: number | null;
  frameRate: number;
  captureContent: boolean;
}

const SHIPPED: Defaults = { k: 4, tau: null, frameRate: 10, captureContent: false };

/** Returns a reader of the user's settings as they are now; what ships where the registry is missing. */
export async function readDefaults(registry: ISettingRegistry | null): Promise<() => Defaults> {
  const settings = await registry?.load(PLUGIN).catch(() => null);
  return () => ({ ...SHIPPED, ...(settings?.composite as Partial<Defaults> | undefined) });
}

/** The lines that open a workbench; only what differs from the package's own defaults is written out. */
export function startingLines({ k, tau, captureContent }: Defaults): string {
  const knobs = [
    ...(k === SHIPPED.k ? [] : [`k=${k}`]),
    ...(tau === SHIPPED.tau ? [] : [`tau=${tau}`]),
  ];
  const options = [
    ...(knobs.length ? [`profile=nl.Profile(${knobs.join(", ")})`] : []),
    ...(captureContent ? ["contents=True"] : []),
  ];
  return `import nexus_lab as nl\nnl.Workbench(${options.join(", ")})`;
}
