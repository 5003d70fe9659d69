/* The frame of a report page: its style, headings and tiles. */
#include "report/html.h"
#include "base/file.h"

/* Series colours were chosen to stay apart for colour-blind readers, in both settings. */
static const char style[] =
    ":root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1c1d21;--soft:#63666f;"
    "--line:#e4e4e1;--grid:#ececea;--accent:#b3212f;--limit:#8a8d96;"
    "--c1:#c2263a;--c2:#2f6fb5;--c3:#8b8d94;--c4:#c98a12;--c5:#2a9170;--c6:#8a4fb0;"
    "--c7:#d5643f;--c8:#4a5a78}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#131417;--card:#1b1d21;--ink:#e9e9ea;"
    "--soft:#9b9ea8;--line:#2d3036;--grid:#282b30;--accent:#f0707c;--limit:#8b8f99;"
    "--c1:#f2717d;--c2:#6fabee;--c3:#9a9da6;--c4:#e3b04b;--c5:#56c49e;--c6:#bd8ee0;"
    "--c7:#f09a76;--c8:#a3b3d1}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"
    "'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;-webkit-text-size-adjust:100%}\n"
    "main{max-width:1180px;margin:0 auto;padding:40px 24px 64px}\n"
    "h1{font-size:30px;line-height:1.2;letter-spacing:-.015em;margin:0 0 6px}\n"
    "h2{font-size:20px;letter-spacing:-.01em;margin:48px 0 4px}\n"
    "p{max-width:72ch;margin:6px 0 16px}\n"
    ".lead,.note,section>p{color:var(--soft)}\n"
    ".note{font-size:14px}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:12px;"
    "margin:26px 0 8px;padding:0;list-style:none}\n"
    ".tiles li{background:var(--card);border:1px solid var(--line);border-radius:10px;"
    "padding:14px 16px}\n"
    ".tiles b{display:block;font-size:25px;line-height:1.2;font-weight:600;"
    "font-variant-numeric:tabular-nums}\n"
    ".tiles small{font-size:14px;font-weight:400;color:var(--soft);margin-left:.3em}\n"
    ".tiles span{color:var(--soft);font-size:14px}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr));"
    "gap:16px;margin:16px 0}\n"
    "figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;"
    "padding:16px 16px 10px;min-width:0}\n"
    "figcaption{line-height:1.35}\n"
    "figcaption span{color:var(--soft);font-size:14px;display:block}\n"
    ".legend{display:flex;flex-wrap:wrap;gap:2px 16px;list-style:none;margin:8px 0 4px;padding:0;"
    "font-size:14px}\n"
    ".legend i{display:inline-block;width:16px;height:3px;border-radius:2px;margin-right:7px;"
    "vertical-align:4px;background:currentColor}\n"
    ".legend li{color:var(--ink)}\n"
    ".legend .limit i{height:0;background:none;border-top:2px dashed var(--limit);"
    "border-radius:0}\n"
    "svg{display:block;width:100%;height:auto;font-family:inherit}\n"
    "svg .grid path{stroke:var(--grid);fill:none}\n"
    "svg .axis{stroke:var(--limit);fill:none}\n"
    "svg text{font-size:13px;fill:var(--soft);font-variant-numeric:tabular-nums}\n"
    "svg .tick.x text,svg .label{text-anchor:middle}\n"
    "svg .tick.y text,svg .limit text{text-anchor:end}\n"
    "svg .line path{fill:none;stroke:currentColor;stroke-width:2.2;stroke-linejoin:round;"
    "stroke-linecap:round}\n"
    "svg .point circle{fill:currentColor;stroke:var(--card);stroke-width:1.5}\n"
    "svg .point .hit{fill:transparent;stroke:none}\n"
    "svg .point:hover circle:first-child{stroke:currentColor;stroke-width:5}\n"
    "svg .area path{fill:currentColor;fill-opacity:.22;stroke:currentColor;stroke-width:1.4}\n"
    "svg .stack path{fill:currentColor;fill-opacity:.75;stroke:var(--card);stroke-width:.5}\n"
    "svg .stack rect{fill:transparent}svg .stack rect:hover{fill:var(--ink);fill-opacity:.15}\n"
    "svg .limit path{fill:none;stroke:var(--limit);stroke-width:1.6;stroke-dasharray:6 5}\n"
    "svg .limit text{font-size:12px}\n"
    "svg .c1,.legend .c1 i{color:var(--c1)}svg .c2,.legend .c2 i{color:var(--c2)}"
    "svg .c3,.legend .c3 i{color:var(--c3)}svg .c4,.legend .c4 i{color:var(--c4)}"
    "svg .c5,.legend .c5 i{color:var(--c5)}svg .c6,.legend .c6 i{color:var(--c6)}"
    "svg .c7,.legend .c7 i{color:var(--c7)}svg .c8,.legend .c8 i{color:var(--c8)}\n"
    ".scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);"
    "border-radius:10px;margin:16px 0}\n"
    "table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:7px 14px;white-space:nowrap;border-bottom:1px solid var(--line)}\n"
    "tbody tr:last-child td{border-bottom:0}\n"
    "th{font-weight:600;color:var(--soft);text-align:left}\n"
    "th.r,td.r{text-align:right}\n"
    "tbody tr:hover{background:var(--bg)}\n"
    "details{margin:16px 0}summary{cursor:pointer;color:var(--soft)}\n"
    ".empty{color:var(--soft)}\n"
    "footer{margin-top:48px;padding-top:16px;border-top:1px solid var(--line);color:var(--soft);"
    "font-size:14px}\n"
    "@media (max-width:560px){main{padding:24px 14px 48px}svg text{font-size:17px}"
    "svg .limit text{font-size:15px}figure{padding:12px 8px 6px}}\n"
    "@media print{body{background:#fff}figure,tr{break-inside:avoid}}\n";

static void element(km_text *out, const char *open, const char *text, const char *close) {
    km_text_add(out, open);
    km_text_escape(out, text);
    km_text_add(out, close);
}

void km_html_begin(km_text *out, const char *title, const char *lead) {
    km_text_add(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                     "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\n");
    element(out, "<title>", title, "</title>\n<style>\n");
    km_text_add(out, style);
    km_text_add(out, "</style>\n</head>\n<body>\n<main>\n<section>\n");
    element(out, "<h1>", title, "</h1>\n");
    if (lead) element(out, "<p class=\"lead\">", lead, "</p>\n");
}

void km_html_tiles(km_text *out, const km_tile *tiles, int n) {
    km_text_add(out, "<ul class=\"tiles\">\n");
    for (int i = 0; i < n; i++) {
        element(out, "<li><b>", tiles[i].value, "");
        element(out, "<small>", tiles[i].unit ? tiles[i].unit : "", "</small></b>");
        element(out, "<span>", tiles[i].label, "</span></li>\n");
    }
    km_text_add(out, "</ul>\n");
}

void km_html_section(km_text *out, const char *heading, const char *text) {
    element(out, "</section>\n<section>\n<h2>", heading, "</h2>\n");
    if (text) element(out, "<p>", text, "</p>\n");
}

void km_html_note(km_text *out, const char *text) {
    element(out, "<p class=\"note\">", text, "</p>\n");
}

void km_html_charts_begin(km_text *out) { km_text_add(out, "<div class=\"charts\">\n"); }

void km_html_charts_end(km_text *out) { km_text_add(out, "</div>\n"); }

void km_html_end(km_text *out, const char *footer) {
    element(out, "</section>\n<footer>", footer, "</footer>\n</main>\n</body>\n</html>\n");
}

km_status km_html_write(const km_text *page, const char *path, km_error *err) {
    if (!km_text_ok(page))
        return km_error_set(err, KM_ERR_MEMORY, "out of memory while building %s", path);
    km_writer *w = km_writer_open(path, err);
    if (!w) return err ? err->code : KM_ERR_FILE;
    km_writer_put(w, page->data, page->len);
    return km_writer_commit(w, err);
}
