/** Writes `www`: the web app for phones beside this folder, with the service's address, and what an app is told. */

import { cpSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const service = process.env.CHAT_SERVICE ?? "";
if (!/^wss?:.*\/v1\/ws$/.test(service)) {
  console.error("CHAT_SERVICE has to be the chat service's address, such as wss://chat.example.org/v1/ws.");
  process.exit(1);
}

rmSync("www", { recursive: true, force: true });
cpSync("../phone-web", "www", { recursive: true, dereference: true });
writeFileSync("www/config.js", `export const SERVICE = ${JSON.stringify(service)};\n`);

// An app is installed already, and has its files: what makes a page so is not needed.
const page = readFileSync("www/index.html", "utf8");
writeFileSync("www/index.html", page.replace('src="install.js"', 'src="native.js"'));
for (const file of ["install.js", "worker.js", "manifest.webmanifest"]) rmSync(`www/${file}`);
await build({ entryPoints: ["native.js"], bundle: true, format: "esm", external: ["./app.js"], outdir: "www" });
