"use strict";
const list = document.getElementById("episodes");
const controls = document.getElementById("controls");
const rows = Array.from(list.children);

// Videos near the screen load their first picture; those that leave it give their decoder back.
const observer = new IntersectionObserver((entries) => {
  for (const { target: video, isIntersecting } of entries) {
    if (isIntersecting) {
      video.preload = "metadata";
    } else if (video.paused && video.preload !== "none") {
      video.preload = "none";
      video.load();
    }
  }
}, { rootMargin: "300px" });
for (const video of document.querySelectorAll("video")) observer.observe(video);

function within(value, least, most) {
  if (least === "" && most === "") return true;
  return value !== "" && (least === "" || +value >= +least) && (most === "" || +value <= +most);
}

function apply() {
  const wanted = Object.fromEntries(new FormData(controls));
  const direction = wanted.descending ? -1 : 1;
  let shown = 0;
  for (const row of rows) {
    const data = row.dataset;
    row.hidden = !((!wanted.success || data.success === wanted.success)
      && (wanted.env === "" || data.env === wanted.env)
      && (!wanted.suspicious || data.suspicious === "yes")
      && within(data.return, wanted["return-min"], wanted["return-max"])
      && within(data.steps, wanted["steps-min"], wanted["steps-max"]));
    if (!row.hidden) shown += 1;
  }
  const key = wanted.sort;
  rows.sort((one, other) => {
    const a = one.dataset[key], b = other.dataset[key];
    if (a === "" || b === "") return (a === "") - (b === "") || one.dataset.order - other.dataset.order;
    return direction * (a - b) || one.dataset.order - other.dataset.order;
  });
  list.append(...rows);
  document.getElementById("shown").textContent = shown + " shown";
  document.getElementById("nothing").hidden = shown > 0;
}
controls.addEventListener("input", apply);
controls.addEventListener("reset", () => setTimeout(apply));
controls.addEventListener("submit", (event) => event.preventDefault());

// All cameras of an episode follow the first one.
function playTogether(videos, button) {
  const leader = videos[0];
  if (videos.some((video) => !video.paused)) {
    for (const video of videos) video.pause();
    return;
  }
  if (leader.ended || videos.every((video) => video.ended)) for (const video of videos) video.currentTime = 0;
  for (const video of videos) {
    video.currentTime = leader.currentTime;
    video.play().catch((error) => { button.title = String(error); });
  }
  leader.ontimeupdate = () => {
    for (const video of videos.slice(1)) {
      if (!video.ended && Math.abs(video.currentTime - leader.currentTime) > 0.15) video.currentTime = leader.currentTime;
    }
  };
}
for (const button of document.querySelectorAll("button.play")) {
  const videos = Array.from(button.closest(".episode").querySelectorAll("video"));
  button.addEventListener("click", () => playTogether(videos, button));
}
apply();
