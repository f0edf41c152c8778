// Opens a report at a phone's and a desktop's width and says what would be seen, as JSON on standard output.
// node report.cjs CHROMIUM FILE SCREENSHOT_FOLDER
const { chromium } = require("playwright-core");
const path = require("path");

const [executablePath, file, folder] = process.argv.slice(2);

// Elements that stick out of the window to the right, but for what scrolls inside a box of its own.
function stickingOut() {
  const width = document.documentElement.clientWidth;
  return [...document.querySelectorAll("body *")]
    .filter((e) => !e.parentElement.closest("svg, .scroll, pre"))
    .filter((e) => e.getBoundingClientRect().right > width + 1)
    .map((e) => `${e.tagName.toLowerCase()}.${e.getAttribute("class")}: ${e.textContent.slice(0, 60)}`);
}

async function look(browser, width) {
  const page = await browser.newPage({ viewport: { width, height: 900 } });
  const seen = { requests: 0, errors: [] };
  page.on("request", () => (seen.requests += 1));
  page.on("pageerror", (error) => seen.errors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && seen.errors.push(message.text()));
  await page.goto(`file://${file}`);
  await page.evaluate(() => document.querySelectorAll("details").forEach((e) => (e.open = true)));
  Object.assign(seen, await page.evaluate(() => ({
    page: document.documentElement.scrollWidth,
    plots: document.querySelectorAll("svg").length,
    tables: document.querySelectorAll("table").length,
    scrolled: [...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth).length,
  })));
  seen.stickingOut = await page.evaluate(stickingOut);
  await page.screenshot({ path: path.join(folder, `report-${width}.png`), fullPage: true });
  await page.close();
  return seen;
}

async function main() {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
  try {
    process.stdout.write(JSON.stringify({ phone: await look(browser, 400), desktop: await look(browser, 1280) }));
  } finally {
    await browser.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
