/** What JSX becomes in the bundle (see `build.mjs`). */
export { Fragment, h } from "preact";
