import { LabIcon } from "@jupyterlab/ui-components";

/** Four tokens in a row, one of them spliced in. */
const SVG = `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">
  <g class="jp-icon3" fill="#616161">
    <rect x="1" y="9" width="3" height="5"/><rect x="5" y="9" width="3" height="5"/><rect x="12" y="9" width="3" height="5"/>
  </g>
  <rect class="jp-icon-brand1" fill="#1976d2" x="8.5" y="2" width="3" height="5"/>
  <path class="jp-icon-brand0" stroke="#1976d2" d="M10 8v5" fill="none"/>
</svg>`;

export const nexusIcon = new LabIcon({ name: "nexus-lab:icon", svgstr: SVG });

/** The same for the launcher, which shows cards of notebooks with an image by address. */
export const nexusIconUrl = `data:image/svg+xml,${encodeURIComponent(SVG)}`;
