(() => {
  "use strict";
  const root = document.documentElement;
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  const toggle = document.getElementById("theme");
  const told = document.getElementById("told");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches);
  const show = () => toggle.setAttribute("aria-pressed", String(isDark()));
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  systemIsDark.addEventListener("change", show);
  show();

  const selected = (element) => {
    // Where the clipboard is not allowed (http, old browsers): a selection and the old command.
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    return document.execCommand("copy");
  };
  for (const button of document.querySelectorAll("button[data-copies]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copies);
      let done = false;
      try {
        await navigator.clipboard.writeText(source.textContent);
        done = true;
      } catch {
        done = selected(source);
      }
      told.textContent = "";
      told.textContent = done ? `${button.dataset.name} copied` : "Copying is not allowed here: the text is selected";
      button.textContent = done ? "Copied" : "Selected";
      setTimeout(() => {
        button.textContent = "Copy";
      }, 2000);
    });
  }
})();
