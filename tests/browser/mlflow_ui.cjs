// Looks at a sweep in MLflow's UI and says what a person would see there, as JSON on standard output.
// node mlflow_ui.cjs CHROMIUM EXPERIMENT_URL SWEEP PARENT_ID RUN_ID RUN_NAME SCREENSHOT_FOLDER
// EXPERIMENT_URL is what `deyo-sweep ui SWEEP --no-open` prints. The README's pictures are of the quickstart.
const { chromium } = require("playwright-core");
const path = require("path");

const [executablePath, experiment, sweep, parent, run, runName, folder] = process.argv.slice(2);
const WAIT = 60000;
const WINDOW = { width: 1440, height: 860 };

async function main() {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
  try {
    const page = await browser.newPage({ viewport: WINDOW });
    page.setDefaultTimeout(WAIT);
    const seen = {};
    await page.goto(experiment);
    await page.getByRole("link", { name: sweep, exact: true }).last().waitFor();
    await closeAssistant(page);
    await page.locator('[data-testid="expander-button"], .ag-cell button').first().click();
    await page.getByText(runName, { exact: true }).first().waitFor();
    seen.runs = await page.getByText(/seed \d/).allInnerTexts();
    await chooseColumns(page, ["Dataset", "Source", "Models"], ["accuracy", "method", "model", "corruption", "severity"]);
    await shoot(page, "mlflow-runs");

    const [base, query] = experiment.split("?");
    await page.goto(`${base}/${run}/model-metrics?${query}`);
    await page.locator(".js-plotly-plot .main-svg").first().waitFor();
    for (const name of ["running_accuracy", "entropy", "plpd", "selected_share", "images_per_second"]) {
      await page.getByText(name, { exact: true }).first().waitFor();
    }
    await page.waitForTimeout(1500); // the lines are drawn after the axes
    seen.charts = await page.locator(".js-plotly-plot").count();
    seen.lines = await page.locator(".js-plotly-plot .scatterlayer .trace").count();
    await page.setViewportSize({ width: 1440, height: 980 });
    await shoot(page, "mlflow-run-charts");
    await page.setViewportSize(WINDOW);

    await page.goto(`${base}/${parent}?${query}`);
    await page.getByRole("button", { name: "Show more" }).or(page.getByText("Show more")).first().click();
    await page.locator("table", { hasText: "Tent" }).first().waitFor();
    await page.getByText("Child runs loading").waitFor({ state: "hidden" });
    seen.description = await page.locator("table", { hasText: "Tent" }).first().innerText();
    await shoot(page, "mlflow-parent");

    await page.goto(`${base}/${parent}/artifacts/tables/table.html?${query}`);
    const frame = page.frameLocator("iframe").first();
    await frame.getByText("Tent").first().waitFor();
    seen.table = await frame.locator("body").innerText();
    await shoot(page, "mlflow-parent-table");
    process.stdout.write(JSON.stringify(seen));
  } finally {
    await browser.close();
  }

  async function shoot(page, name) {
    await page.screenshot({ path: path.join(folder, `${name}.png`) });
  }
}

// For the picture only: the columns of the run list that say what a run is.
async function chooseColumns(page, hidden, shown) {
  const menu = page.getByPlaceholder("Search columns");
  await page.getByRole("button", { name: "Columns" }).click();
  for (const name of [...hidden, ...shown]) {
    await menu.fill(name);
    const node = page.locator('[class*="tree-treenode"]').filter({ hasText: new RegExp(`^\\s*${name}\\s*$`) });
    await node.locator('[class*="tree-title"]').first().click();
  }
  await page.keyboard.press("Escape");
  await page.mouse.move(700, 20);
  await page.waitForTimeout(1000);
}

async function closeAssistant(page) {
  const heading = page.getByText("MLflow Assistant").first();
  if (await heading.isVisible().catch(() => false)) {
    const panel = heading.locator("xpath=ancestor::*[.//button][1]");
    await panel.locator("button").last().click().catch(() => undefined);
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
