"use strict";(self.rspackChunknexus_lab_extension=self.rspackChunknexus_lab_extension||[]).push([[0],{22(n,e,r){var a=r(20),t=r.n(a),l=r(21),o=(r.n(l))()(t());o.push([n.id,`/* Design tokens. Everything that has a JupyterLab variable inherits it; the rest is named --nl-*.
   Scope is .nl (one root per view), so two views in one notebook never collide.
   Contrast ratios in comments: [on --jp-layout-color0 light #ffffff / dark #111111]. Text needs 4.5, graphics 3.0. */

/* What Lab gives, with Lab's own values where there is no Lab; [data-own] is a view that does not follow Lab. */
.nl {
  --nl-jp-font: var(--jp-ui-font-family, -apple-system, BlinkMacSystemFont, "Segoe UI", Helvetica, Arial, sans-serif);
  --nl-jp-mono: var(--jp-code-font-family, menlo, consolas, "DejaVu Sans Mono", monospace);
  --nl-jp-ink: var(--jp-ui-font-color0, #000000);
  --nl-jp-inverse: var(--jp-ui-inverse-font-color0, #ffffff);
  --nl-jp-layout0: var(--jp-layout-color0, #ffffff);
  --nl-jp-layout2: var(--jp-layout-color2, #eeeeee);
  --nl-jp-border1: var(--jp-border-color1, #bdbdbd);
  --nl-jp-border2: var(--jp-border-color2, #e0e0e0);
  --nl-jp-input: var(--jp-input-border-color, #757575);
  --nl-jp-brand: var(--jp-brand-color1, #1976d2);
}
.nl[data-theme="dark"] {
  --nl-jp-ink: var(--jp-ui-font-color0, #ffffff);
  --nl-jp-inverse: var(--jp-ui-inverse-font-color0, #000000);
  --nl-jp-layout0: var(--jp-layout-color0, #111111);
  --nl-jp-layout2: var(--jp-layout-color2, #424242);
  --nl-jp-border1: var(--jp-border-color1, #616161);
  --nl-jp-border2: var(--jp-border-color2, #424242);
  --nl-jp-brand: var(--jp-brand-color1, #2196f3);
}
.nl[data-own][data-theme="light"] {
  --nl-jp-ink: #000000; --nl-jp-inverse: #ffffff; --nl-jp-layout0: #ffffff; --nl-jp-layout2: #eeeeee;
  --nl-jp-border1: #bdbdbd; --nl-jp-border2: #e0e0e0; --nl-jp-input: #757575; --nl-jp-brand: #1976d2;
}
.nl[data-own][data-theme="dark"] {
  --nl-jp-ink: #ffffff; --nl-jp-inverse: #000000; --nl-jp-layout0: #111111; --nl-jp-layout2: #424242;
  --nl-jp-border1: #616161; --nl-jp-border2: #424242; --nl-jp-input: #757575; --nl-jp-brand: #2196f3;
}

.nl {
  /* spacing: 4 px grid */
  --nl-s1: 4px;  --nl-s2: 8px;  --nl-s3: 12px;  --nl-s4: 16px;  --nl-s6: 24px;
  --nl-control: 26px;            /* height of every button, input, select */
  --nl-radius: 3px;

  /* type: one family, four sizes, two weights (400, 600) */
  --nl-fs-0: 11px;               /* axis ticks, units under a number; never smaller */
  --nl-fs-1: 12px;               /* tables, secondary lines */
  --nl-fs-2: 13px;               /* default */
  --nl-fs-3: 20px;               /* the one number of a result card */
  --nl-lh: 1.4;
  --nl-font: var(--nl-jp-font);
  --nl-mono: var(--nl-jp-mono);

  /* ink and surfaces, derived so that any Lab theme works */
  --nl-text: var(--nl-jp-ink);
  --nl-muted: color-mix(in srgb, var(--nl-jp-ink) 66%, transparent);  /* [7.2 / 8.5]; Lab's own color2 drops to 4.4 on grey */
  --nl-bg: var(--nl-jp-layout0);
  --nl-inset: color-mix(in srgb, var(--nl-jp-layout2) 42%, var(--nl-jp-layout0));
  --nl-frame: var(--nl-jp-border1);            /* edge of an empty cell */
  --nl-rule: var(--nl-jp-border2);          /* hairlines only: no meaning, so no ratio asked */
  --nl-edge: var(--nl-jp-input);     /* control borders [4.6 / 4.1] */
  --nl-accent: var(--nl-jp-brand);         /* [4.6 / 6.0] focus, selection, primary action, what can be dragged; nothing else */
  --nl-on-accent: var(--nl-jp-inverse);  /* on the accent [4.6 / 6.7] */
  --nl-accent-wash: color-mix(in srgb, var(--nl-jp-brand) 10%, var(--nl-jp-layout0));
  --nl-focus: 2px solid var(--nl-jp-brand);      /* offset 1px, on every focusable thing */
}

/* Status: always with a sign and a word, never hue alone. */
.nl                     { --nl-ok: #1b5e20; /* [7.9] "✓" */  --nl-warn: #9a4a00; /* [6.3] "!" */  --nl-bad: #b3261e; /* [6.5] "\xd7" */ }
.nl[data-theme="dark"]  { --nl-ok: #81c784; /* [9.4] */      --nl-warn: #ffb74d; /* [10.9] */     --nl-bad: #ff8a80; /* [8.3] */ }

/* Op kinds. Letter and pattern are part of the mark.      letter  pattern                              */
.nl {
  --nl-op-append: #5f6b76;   /* [5.5]                         A       solid                                */
  --nl-op-splice: #4b3fb5;   /* [7.8]                         S       diagonal stripes                     */
  --nl-op-repair: #b35c00;   /* [4.7]                         R       dots                                 */
  --nl-op-drop:   #5f6b76;   /* [5.5]                         D       hollow, dashed edge, cross-hatch     */
  --nl-op-repos:  #00708c;   /* [5.7]                         P       vertical bars (re-packed)            */
}
.nl[data-theme="dark"] {
  --nl-op-append: #9aa7b3;   /* [7.7] */
  --nl-op-splice: #a79bff;   /* [7.9] */
  --nl-op-repair: #ffb04d;   /* [10.4] */
  --nl-op-drop:   #9aa7b3;   /* [7.7] */
  --nl-op-repos:  #4fc3e0;   /* [9.2] */
}

/* Token states reuse the op that made them: computed = append, spliced, repaired, dropped.
   Fill of a token chip is the wash; edge, letter and pattern carry the full colour. */
.nl {
  --nl-st-computed: var(--nl-op-append);
  --nl-st-spliced:  var(--nl-op-splice);
  --nl-st-repaired: var(--nl-op-repair);
  --nl-st-dropped:  var(--nl-op-drop);
  --nl-wash: 14%;
}
.nl[data-theme="dark"] { --nl-wash: 22%; }

/* Colour maps (interpolate in sRGB between stops; the same in both themes, so that a figure means the same everywhere).
   sequential, magnitudes   viridis: 440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725
   sequential, alternative  cividis: 00224e 123570 3b496c 575d6d 707173 8a8678 a59c74 c3b369 e1cc55 fee838
   diverging, signed only   vik:     001261 033e7d 1e6f9d 71a8c4 c9dde7 eacebd d39774 be6533 8b2706 590008
   no value (NaN)           cell left empty, edge drawn, a cross
   above / below the range  end colour plus a corner triangle, up / down                                                 */
`,""]),r.d(e,{},{A:o})},19(n,e,r){var a=r(20),t=r.n(a),l=r(21),o=r.n(l),s=r(22),i=o()(t());i.i(s.A),i.push([n.id,`/* The status panel and the trace viewer. Lab's own panels give the frame; colours come from the tokens. */
.nl-status,
.nl-trace {
  box-sizing: border-box;
  height: 100%;
  overflow: auto;
  background: var(--nl-bg);
  color: var(--nl-text);
  font: var(--nl-fs-2) / var(--nl-lh) var(--nl-font);
  font-variant-numeric: tabular-nums;
}
.nl-status-panel { min-width: 220px; }
.nl-trace-document { overflow: hidden; }
.nl-status *,
.nl-trace * { box-sizing: border-box; }
.nl-status :is(h2, p, dl, dd),
.nl-trace :is(h1, p, dl, dd) { margin: 0; }
.nl-status :focus-visible,
.nl-trace :focus-visible { outline: var(--nl-focus); outline-offset: -2px; }
.nl-status code,
.nl-trace :is(code, pre) { font-family: var(--nl-mono); font-size: var(--nl-fs-1); background: none; color: inherit; }
:is(.nl-status, .nl-trace) .nl-muted { color: var(--nl-muted); }
:is(.nl-status, .nl-trace) .nl-num { font-variant-numeric: tabular-nums; white-space: nowrap; }
:is(.nl-status, .nl-trace) .nl-right { text-align: right; }
:is(.nl-status, .nl-trace) .nl-empty { padding: var(--nl-s4) 0; color: var(--nl-text); overflow-wrap: anywhere; }

.nl-status { padding: var(--nl-s3); }
.nl-status h2 { font-size: var(--nl-fs-2); font-weight: 600; }
.nl-status dt { margin-top: var(--nl-s3); color: var(--nl-muted); font-size: var(--nl-fs-1); }
.nl-status dd { overflow-wrap: anywhere; }
.nl-status meter { width: 100%; display: block; }
.nl-status button {
  display: block;
  margin-top: var(--nl-s2);
  height: var(--nl-control);
  padding: 0 var(--nl-s2);
  font: inherit;
  color: var(--nl-text);
  background: var(--nl-bg);
  border: 1px solid var(--nl-edge);
  border-radius: var(--nl-radius);
  cursor: pointer;
}

.nl-trace { display: flex; flex-direction: column; overflow: hidden; }
.nl-trace > .nl-empty { padding: var(--nl-s4); }
.nl-trace .nl-facts { display: flex; flex-wrap: wrap; gap: 2px 18px; align-items: baseline; padding: var(--nl-s2) var(--nl-s3); }
.nl-trace h1 { font-size: var(--nl-fs-2); font-weight: 600; }
.nl-trace .nl-facts span { color: var(--nl-muted); overflow-wrap: anywhere; }
.nl-trace .nl-tabs {
  display: flex;
  flex-wrap: wrap;
  padding: 0 var(--nl-s3);
  background: var(--nl-inset);
  border-block: 1px solid var(--nl-rule);
}
.nl-trace .nl-tabs button {
  appearance: none;
  font: inherit;
  color: var(--nl-muted);
  background: none;
  border: 0;
  border-bottom: 2px solid transparent;
  padding: 7px 14px 6px;
  cursor: pointer;
}
.nl-trace .nl-tabs button[aria-selected="true"] {
  color: var(--nl-text);
  font-weight: 600;
  background: var(--nl-bg);
  border-bottom-color: var(--nl-accent);
}
.nl-trace .nl-section { flex: 1; min-height: 0; display: grid; grid-template-rows: auto minmax(120px, 1fr) minmax(80px, 32%); }
.nl-trace .nl-tools { display: flex; gap: var(--nl-s4); align-items: center; padding: var(--nl-s2) var(--nl-s3); }
.nl-trace .nl-tools input {
  height: var(--nl-control);
  width: 240px;
  font: inherit;
  color: var(--nl-text);
  background: var(--nl-bg);
  border: 1px solid var(--nl-edge);
  border-radius: var(--nl-radius);
}
.nl-trace .nl-grid { overflow: auto; font-size: var(--nl-fs-1); border-top: 1px solid var(--nl-rule); }
.nl-trace .nl-headrow { position: sticky; top: 0; z-index: 1; background: var(--nl-bg); }
.nl-trace .nl-row { display: grid; gap: 0 var(--nl-s2); padding: 0 var(--nl-s3); height: 24px; align-items: center; min-width: 640px; }
.nl-trace .nl-row:not(.nl-head) { position: absolute; left: 0; right: 0; border-top: 1px solid var(--nl-rule); }
.nl-trace .nl-head { font-weight: 600; }
.nl-trace .nl-row > * { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.nl-trace .nl-row[aria-selected="true"] { background: var(--nl-accent-wash); }
.nl-trace .nl-st i { font-style: normal; font-weight: 600; }
.nl-trace .nl-ok i { color: var(--nl-ok); }
.nl-trace .nl-warn { color: var(--nl-warn); }
.nl-trace .nl-bad { color: var(--nl-bad); }
.nl-trace .nl-detail { overflow: auto; padding: var(--nl-s2) var(--nl-s3); border-top: 1px solid var(--nl-edge); }
.nl-trace .nl-detail dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px var(--nl-s4); font-size: var(--nl-fs-1); }
.nl-trace .nl-detail dt { color: var(--nl-muted); }
.nl-trace .nl-detail dd { overflow-wrap: anywhere; white-space: pre-wrap; }
.nl-trace .nl-detail pre { margin: 0; white-space: pre-wrap; }
`,""]),r.d(e,{},{A:i})},21(n){n.exports=function(n){var e=[];return e.toString=function(){return this.map(function(e){var r="",a=void 0!==e[5];return e[4]&&(r+="@supports (".concat(e[4],") {")),e[2]&&(r+="@media ".concat(e[2]," {")),a&&(r+="@layer".concat(e[5].length>0?" ".concat(e[5]):""," {")),r+=n(e),a&&(r+="}"),e[2]&&(r+="}"),e[4]&&(r+="}"),r}).join("")},e.i=function(n,r,a,t,l){"string"==typeof n&&(n=[[null,n,void 0]]);var o={};if(a)for(var s=0;s<this.length;s++){var i=this[s][0];null!=i&&(o[i]=!0)}for(var p=0;p<n.length;p++){var d=[].concat(n[p]);a&&o[d[0]]||(void 0!==l&&(void 0===d[5]||(d[1]="@layer".concat(d[5].length>0?" ".concat(d[5]):""," {").concat(d[1],"}")),d[5]=l),r&&(d[2]&&(d[1]="@media ".concat(d[2]," {").concat(d[1],"}")),d[2]=r),t&&(d[4]?(d[1]="@supports (".concat(d[4],") {").concat(d[1],"}"),d[4]=t):d[4]="".concat(t)),e.push(d))}},e}},20(n){n.exports=function(n){return n[1]}},12(n,e,r){r.r(e);var a=r(13),t=r.n(a),l=r(14),o=r.n(l),s=r(15),i=r.n(s),p=r(16),d=r.n(p),c=r(17),u=r.n(c),f=r(18),v=r.n(f),b=r(19),h={};h.styleTagTransform=v(),h.setAttributes=d(),h.insert=i().bind(null,"head"),h.domAPI=o(),h.insertStyleElement=u(),t()(b.A,h);let m=b.A&&b.A.locals?b.A.locals:void 0;r.d(e,{},{default:m})},13(n){var e=[];function r(n){for(var r=-1,a=0;a<e.length;a++)if(e[a].identifier===n){r=a;break}return r}function a(n,a){for(var t={},l=[],o=0;o<n.length;o++){var s=n[o],i=a.base?s[0]+a.base:s[0],p=t[i]||0,d="".concat(i," ").concat(p);t[i]=p+1;var c=r(d),u={css:s[1],media:s[2],sourceMap:s[3],supports:s[4],layer:s[5]};if(-1!==c)e[c].references++,e[c].updater(u);else{var f=function(n,e){var r=e.domAPI(e);return r.update(n),function(e){e?(e.css!==n.css||e.media!==n.media||e.sourceMap!==n.sourceMap||e.supports!==n.supports||e.layer!==n.layer)&&r.update(n=e):r.remove()}}(u,a);a.byIndex=o,e.splice(o,0,{identifier:d,updater:f,references:1})}l.push(d)}return l}n.exports=function(n,t){var l=a(n=n||[],t=t||{});return function(n){n=n||[];for(var o=0;o<l.length;o++){var s=r(l[o]);e[s].references--}for(var i=a(n,t),p=0;p<l.length;p++){var d=r(l[p]);0===e[d].references&&(e[d].updater(),e.splice(d,1))}l=i}}},15(n){var e={};n.exports=function(n,r){var a=function(n){if(void 0===e[n]){var r=document.querySelector(n);if(window.HTMLIFrameElement&&r instanceof window.HTMLIFrameElement)try{r=r.contentDocument.head}catch(n){r=null}e[n]=r}return e[n]}(n);if(!a)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");a.appendChild(r)}},17(n){n.exports=function(n){var e=document.createElement("style");return n.setAttributes(e,n.attributes),n.insert(e,n.options),e}},16(n,e,r){n.exports=function(n){var e=r.nc;e&&n.setAttribute("nonce",e)}},14(n){n.exports=function(n){if("u"<typeof document)return{update:function(){},remove:function(){}};var e=n.insertStyleElement(n);return{update:function(r){var a,t,l;a="",r.supports&&(a+="@supports (".concat(r.supports,") {")),r.media&&(a+="@media ".concat(r.media," {")),(t=void 0!==r.layer)&&(a+="@layer".concat(r.layer.length>0?" ".concat(r.layer):""," {")),a+=r.css,t&&(a+="}"),r.media&&(a+="}"),r.supports&&(a+="}"),(l=r.sourceMap)&&"u">typeof btoa&&(a+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(l))))," */")),n.styleTagTransform(a,e,n.options)},remove:function(){var n;null===(n=e).parentNode||n.parentNode.removeChild(n)}}}},18(n){n.exports=function(n,e){if(e.styleSheet)e.styleSheet.cssText=n;else{for(;e.firstChild;)e.removeChild(e.firstChild);e.appendChild(document.createTextNode(n))}}}}]);