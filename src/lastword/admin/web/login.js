// Takes the token, sends it once, and continues with the cookie that it gets.

const form = document.getElementById("form");
const problem = document.getElementById("problem");

function next() {
  const wanted = new URLSearchParams(location.search).get("next") ?? "/";
  const there = new URL(wanted, location.origin);
  location.replace(there.origin === location.origin ? there.href : "/");
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.textContent = "";
  const token = document.getElementById("token").value.trim();
  try {
    const answer = await fetch("/login", {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
      body: "{}",
    });
    if (answer.ok) return next();
    problem.textContent = answer.status === 401 ? "That is not the token of this server." : (await answer.json()).detail;
  } catch {
    problem.textContent = "The server does not answer.";
  }
});

// A user who followed a link from another site may have the cookie already: the browser did not send it with that request.
fetch("/healthz")
  .then(() => fetch("/v1/views/engine"))
  .then((answer) => answer.ok && next())
  .catch(() => {});
