// Builds the bundles in app/page/vendor: vendor.js becomes markdown.js, and highlight.js and formulas.js keep their names.
// The licences are put beside them. manifest.json records which sources (by SHA-256) made which files, so that check.py
// needs neither Node nor network. Prints what each package adds to each bundle.
import { createHash } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = new URL("./", import.meta.url);
const out = new URL("../app/page/vendor/", here);
const bundles = {
  "markdown.js": { entry: "vendor.js", holds: "marked and DOMPurify" },
  "highlight.js": { entry: "highlight.js", holds: "highlight.js" },
  "formulas.js": { entry: "formulas.js", holds: "KaTeX" },
};
const sources = [".npmrc", "build.mjs", "formulas.js", "highlight.js", "package.json", "package-lock.json", "vendor.js"];
const bundled = { marked: "LICENSE", dompurify: "LICENSE", "highlight.js": "LICENSE", katex: "LICENSE" };

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

/** The bytes that each package adds to a bundle, minified. */
function shares({ inputs }) {
  const bytes = new Map();
  for (const [path, { bytesInOutput }] of Object.entries(inputs)) {
    const name = path.replace(/^.*node_modules\//, "").split("/").slice(0, path.includes("/languages/") ? 4 : 1).join("/");
    bytes.set(name, (bytes.get(name) ?? 0) + bytesInOutput);
  }
  return [...bytes].sort(([, one], [, other]) => other - one);
}

for (const [name, { entry, holds }] of Object.entries(bundles)) {
  const { metafile } = await build({
    entryPoints: [fileURLToPath(new URL(entry, here))],
    outfile: fileURLToPath(new URL(name, out)),
    bundle: true,
    metafile: true,
    logLevel: "warning",
    logOverride: { "import-is-undefined": "error" },
    format: "esm",
    target: "es2022",
    minify: true,
    legalComments: "none",
    banner: { js: `/* ${holds}: see LICENSES.txt and, for the build, page/ in the repository */` },
  });
  const [output] = Object.values(metafile.outputs);
  console.log(`${name}: ${output.bytes} bytes`);
  for (const [part, bytes] of shares(output)) console.log(`  ${String(bytes).padStart(7)}  ${part}`);
}
await writeFile(new URL("LICENSES.txt", out), await licences());
const manifest = { sources: await hashes(here, sources), files: await hashes(out, ["LICENSES.txt", ...Object.keys(bundles)]) };
await writeFile(new URL("manifest.json", out), `${JSON.stringify(manifest, null, 2)}\n`);
