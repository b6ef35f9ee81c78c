// Checks HTML pages with axe-core in Chromium, at three widths and in light and dark.
//
//     npm install --prefix /tmp/axe playwright-core axe-core
//     NODE_PATH=/tmp/axe/node_modules node scripts/check_accessibility.mjs heatmap.html lens.html attention.html
//
// Needs Debian's `chromium`, or the browser that the variable CHROMIUM names. Prints each violation; the exit code is 0
// if there are none.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(import.meta.url);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"],
});
let found = 0;
for (const file of process.argv.slice(2)) {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [390, 800, 1280]) {
      // axe is not part of the page, so the page's content security policy must not stop it.
      const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme, bypassCSP: true });
      const page = await context.newPage();
      page.on("pageerror", (error) => {
        found += 1;
        console.log(`${file}: ${error}`);
      });
      await page.goto(pathToFileURL(resolve(file)).href);
      await page.waitForTimeout(300);
      await page.addScriptTag({ content: axe });
      const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
      for (const { id, help, nodes } of violations) {
        found += 1;
        console.log(`${file} (${colorScheme}, ${width} px): ${id}: ${help}: ${nodes.map(({ target }) => target.join(" ")).join(", ")}`);
      }
      await context.close();
    }
  }
}
await browser.close();
process.exitCode = found ? 1 : 0;
