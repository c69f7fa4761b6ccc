#include "report/html/style.h"

namespace pleat::report::html {

std::string colour_class(size_t index) {
  return index < kNumColours ? "c" + std::to_string(index + 1) : "c0";
}

const std::string_view kStyle = R"css(
:root{color-scheme:light dark;--bg:#f5f6f8;--card:#ffffff;--ink:#1c2330;--soft:#5b6575;--line:#e3e6ec;
--c0:#a3abb8;--c1:#3d6fb4;--c2:#e09f3e;--c3:#2a9d8f;--c4:#b5577a;--c5:#7b6cc4;--c6:#78a64a;--c7:#5fb0d6;--c8:#8f6b4e;
--good:#23766b;--good-bg:#ddf1ee;--mid:#86570a;--mid-bg:#fbedd0;--bad:#a8324a;--bad-bg:#fbe0e5}
@media (prefers-color-scheme:dark){:root{--bg:#12161d;--card:#1a202a;--ink:#e6eaf1;--soft:#98a3b5;--line:#2c3442;
--c0:#6a7485;--c1:#6a9de0;--c2:#e9b461;--c3:#4cc0b1;--c4:#d97fa0;--c5:#a093e6;--c6:#9ac76b;--c7:#7fc8ea;--c8:#c29a78;
--good:#7fd6c9;--good-bg:#1b3a37;--mid:#f0c67e;--mid-bg:#3f3219;--bad:#f19bab;--bad-bg:#45202a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,"Liberation Sans",sans-serif;font-variant-numeric:tabular-nums}
main{max-width:1320px;margin:0 auto;padding:32px 24px 48px}
header{margin:0 0 22px}
h1{font-size:27px;line-height:1.2;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:18px;margin:0 0 12px}
h3{font-size:14px;font-weight:600;margin:0}
header p{margin:6px 0 0;color:var(--soft);overflow-wrap:anywhere}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:20px 22px;margin:0 0 18px}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(210px,1fr));gap:12px;margin:0 0 18px}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 16px}
.card small{display:block;color:var(--soft);font-size:12.5px}
.card b{display:block;font-size:22px;font-weight:600;letter-spacing:-.01em;line-height:1.35;white-space:nowrap}
.card span{display:block;color:var(--soft);font-size:12.5px;min-height:1.5em}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:22px 30px}
figure{margin:0}
figcaption{display:flex;flex-wrap:wrap;gap:4px 16px;align-items:baseline;margin:0 0 6px}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;color:var(--soft);font-size:12.5px;margin:0}
.key{display:inline-flex;align-items:center}
.key i{width:11px;height:11px;border-radius:3px;margin-right:6px;flex:none}
.key.faint i{opacity:.35}
svg{display:block}
.chart svg{width:100%;height:auto;overflow:visible}
svg text{fill:var(--soft);font-size:12px}
.grid line,.gridline{stroke:var(--line)}
.axis{stroke:var(--soft);stroke-opacity:.6}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.line.faint{stroke-width:1;opacity:.5}
.bad{fill:var(--bad)}
.hover{visibility:hidden}
.cursor{stroke:var(--soft);stroke-dasharray:3 3}
.note{color:var(--soft);margin:0 0 10px;font-size:13.5px}
.missing{color:var(--soft);border-left:3px solid var(--c2);padding:2px 0 2px 12px;margin:4px 0}
.warn{color:var(--bad)}
.heat{margin:0 0 26px}
.heatgrid{display:grid;grid-template-columns:max-content minmax(0,1fr);column-gap:10px}
.heatgrid .rows{color:var(--soft);text-align:right;white-space:nowrap}
.cells{border-radius:6px;background:var(--bg)}
.cells text,.cols text{text-anchor:middle;font-size:11.5px}
.cells text{dominant-baseline:central;pointer-events:none}
.cells .on-dark{fill:#fff}.cells .on-light{fill:#1c2330}
.cells .mark{fill:#ff8a9c;font-weight:700}
b.mark{color:var(--bad)}
.axis-title{color:var(--soft);font-size:12.5px;text-align:center;margin-top:-2px}
.ramp{display:flex;flex-wrap:wrap;align-items:flex-start;gap:2px 12px;color:var(--soft);font-size:12.5px;margin-top:8px}
.ramp span{line-height:12px}
.ramp text{text-anchor:middle;font-size:11px}
.timeline{margin:6px 0 20px}
.timeline .lane{fill:var(--ink);font-weight:600;font-size:13px}
.timeline tspan{fill:var(--soft);font-weight:400}
.timeline rect,.cells rect{shape-rendering:crispEdges}
.alt{fill-opacity:.68}
.c0{fill:var(--c0);background:var(--c0)}.c1{fill:var(--c1);background:var(--c1)}
.c2{fill:var(--c2);background:var(--c2)}.c3{fill:var(--c3);background:var(--c3)}
.c4{fill:var(--c4);background:var(--c4)}.c5{fill:var(--c5);background:var(--c5)}
.c6{fill:var(--c6);background:var(--c6)}.c7{fill:var(--c7);background:var(--c7)}
.c8{fill:var(--c8);background:var(--c8)}.plain{fill:var(--c1);fill-opacity:.55}
.dot{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:18px 36px}
.bars{margin:0 0 10px}
.barrow{display:grid;grid-template-columns:130px minmax(0,1fr) 90px;gap:12px;align-items:center;margin:0 0 7px;
font-size:13.5px}
.barrow span{color:var(--soft)}.barrow b{font-weight:600}
.barrow svg{border-radius:5px;background:var(--bg)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{color:var(--soft);font-weight:500;text-align:left;white-space:nowrap}
th,td{padding:6px 12px 6px 0;border-bottom:1px solid var(--line)}
tbody tr:last-child td{border-bottom:0}
td:last-child,th:last-child{padding-right:0}
.n{text-align:right;white-space:nowrap}
.wide{width:34%}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:12.5px}
td code{overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0;max-height:420px;overflow:auto}
.sha{overflow-wrap:anywhere}
summary{cursor:pointer;color:var(--soft)}
details[open] summary{margin-bottom:10px}
.pill{display:inline-block;padding:1px 10px;border-radius:999px;font-size:12.5px;font-weight:600;
background:var(--mid-bg);color:var(--mid)}
.pill.balanced,.pill.fine{background:var(--good-bg);color:var(--good)}
.pill.dead,.pill.collapsing,.pill.non-finite{background:var(--bad-bg);color:var(--bad)}
footer{color:var(--soft);font-size:13px;padding:4px 2px}
#tip{position:fixed;z-index:9;pointer-events:none;max-width:min(520px,90vw);padding:7px 11px;border-radius:8px;
background:var(--ink);color:var(--card);font-size:12.5px;white-space:pre-line;overflow-wrap:anywhere;visibility:hidden}
@media (max-width:700px){main{padding:20px 12px}section{padding:16px 14px}
.barrow{grid-template-columns:96px minmax(0,1fr) 74px;gap:8px}.barrow svg{min-width:0}
.cards{grid-template-columns:repeat(auto-fill,minmax(140px,1fr))}.cells text{font-size:10px}}
@media print{section,.card{break-inside:avoid}body{background:#fff}}
)css";

const std::string_view kScript = R"js(
(() => {
  const tip = document.createElement('div');
  tip.id = 'tip';
  document.body.appendChild(tip);
  const hide = () => { tip.style.visibility = 'hidden'; };
  const show = (event, text) => {
    tip.textContent = text;
    tip.style.visibility = 'visible';
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const above = event.clientY + 18 + box.height > innerHeight;
    tip.style.left = Math.max(4, x) + 'px';
    tip.style.top = (above ? event.clientY - box.height - 10 : event.clientY + 18) + 'px';
  };
  for (const svg of document.querySelectorAll('svg[data-hover=hint]')) {
    svg.addEventListener('pointermove', (event) => {
      const target = event.target;
      const title = target.querySelector && target.querySelector(':scope > title');
      if (title) {
        target.dataset.hint = title.textContent;
        title.remove();
      }
      if (target.dataset.hint) show(event, target.dataset.hint); else hide();
    });
    svg.addEventListener('pointerleave', hide);
  }
  for (const svg of document.querySelectorAll('svg[data-hover=lines]')) {
    const group = svg.querySelector('.hover'), cursor = group.querySelector('.cursor');
    const series = [...group.querySelectorAll('[data-points]')].map((g) => ({
      name: g.dataset.name,
      dot: g.querySelector('circle'),
      points: g.dataset.points.split('|').filter((p) => p).map((p) => p.split(' ')),
    })).filter((s) => s.points.length);
    svg.addEventListener('pointermove', (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const lines = [];
      let nearest = null;
      for (const s of series) {
        let best = s.points[0];
        for (const p of s.points) if (Math.abs(p[0] - at.x) < Math.abs(best[0] - at.x)) best = p;
        s.dot.setAttribute('cx', best[0]);
        s.dot.setAttribute('cy', best[1]);
        lines.push(s.name + '  ' + best[3] + (s.points.length < series[0].points.length ? ' (step ' + best[2] + ')' : ''));
        if (!nearest) nearest = best;
      }
      if (!nearest) return;
      cursor.setAttribute('x1', nearest[0]);
      cursor.setAttribute('x2', nearest[0]);
      group.style.visibility = 'visible';
      show(event, 'step ' + nearest[2] + '\n' + lines.join('\n'));
    });
    svg.addEventListener('pointerleave', () => { group.style.visibility = 'hidden'; hide(); });
  }
})();
)js";

}  // namespace pleat::report::html
