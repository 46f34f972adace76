// Bundles vendor.js into app/page/vendor/markdown.js, gathers the licences beside it, and writes down in
// manifest.json which sources (by SHA-256) made which files, so that check.py can tell without node or network.
import { createHash } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = new URL("./", import.meta.url);
const out = new URL("../app/page/vendor/", here);
const sources = [".npmrc", "build.mjs", "package.json", "package-lock.json", "vendor.js"];
const bundled = { marked: "LICENSE", dompurify: "LICENSE", "highlight.js": "LICENSE" };

const sha256 = async (url) => createHash("sha256").update(await readFile(url)).digest("hex");

async function hashes(base, names) {
  return Object.fromEntries(await Promise.all(names.map(async (name) => [name, await sha256(new URL(name, base))])));
}

async function licences() {
  const parts = await Promise.all(
    Object.entries(bundled).map(async ([name, file]) => {
      const root = new URL(`node_modules/${name}/`, here);
      const { version, license } = JSON.parse(await readFile(new URL("package.json", root), "utf8"));
      const text = await readFile(new URL(file, root), "utf8");
      return `${name} ${version} (${license})\n${"=".repeat(72)}\n\n${text.trim()}\n`;
    }),
  );
  return parts.join("\n\n");
}

await build({
  entryPoints: [fileURLToPath(new URL("vendor.js", here))],
  outfile: fileURLToPath(new URL("markdown.js", out)),
  bundle: true,
  logLevel: "warning",
  logOverride: { "import-is-undefined": "error" },
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none",
  banner: { js: "/* marked, DOMPurify and highlight.js: see LICENSES.txt and, for the build, page/ in the repository */" },
});
await writeFile(new URL("LICENSES.txt", out), await licences());
const manifest = { sources: await hashes(here, sources), files: await hashes(out, ["LICENSES.txt", "markdown.js"]) };
await writeFile(new URL("manifest.json", out), `${JSON.stringify(manifest, null, 2)}\n`);
