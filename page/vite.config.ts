import { defineConfig } from "vite";

// Names without hashes: the files are checked in, and the server sends them with an ETag (page/app.py).
export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/foredraft/server/page/app",
    emptyOutDir: true,
    assetsDir: "page",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    // The notices of what is bundled go with it.
    license: { fileName: "licenses.md" },
    target: "es2022",
    rolldownOptions: {
      output: {
        entryFileNames: "page/app.js",
        chunkFileNames: "page/[name].js",
        assetFileNames: "page/[name][extname]",
      },
    },
  },
  // `npm run dev`: the page with live reload, beside `foredraft serve` on its usual port.
  server: {
    proxy: Object.fromEntries(
      ["/v1", "/console", "/tokenize", "/health"].map((path) => [path, "http://127.0.0.1:8080"]),
    ),
  },
});
