// The link's token is used here and not by the page load, so that a link preview does not use it up.
const token = new URLSearchParams(location.search).get("token");
const word = document.getElementById("word");
if (!token) {
  word.textContent = "This page needs a sign-in link. Ask for one with `computepool` or from the operator.";
} else {
  fetch("/v1/sign-in", { method: "POST", body: JSON.stringify({ link_token: token }) })
    .then(async (answer) => {
      if (answer.ok) location.replace("/");
      else word.textContent = (await answer.json()).message;
    })
    .catch(() => { word.textContent = "The hub does not answer. Try again in a moment."; });
}
