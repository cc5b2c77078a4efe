// Bundles the page's script and style into the package; the first line of each names the sources it was built of.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { build } from "esbuild";

const hash = createHash("sha256");
for (const name of readdirSync("src").sort()) hash.update(name).update("\0").update(readFileSync(`src/${name}`)).update("\0");
const banner = `/* hieronnx view; sources ${hash.digest("hex")} */`;

await build({
  entryPoints: { view: "src/main.js" },
  outdir: "../src/hieronnx/files/page",
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "iife",
  target: "es2022",
  banner: { js: banner },
});
await build({
  entryPoints: { view: "src/view.css" },
  outdir: "../src/hieronnx/files/page",
  minify: true,
  charset: "utf8",
  banner: { css: banner },
});
