// What a person is told: the number of questions in the tab's title, notifications, and the end of a run that goes on.
const byId = (id) => document.getElementById(id)
const follow = byId('follow')
const title = document.title.replace(/^\(\d+\) /, '')
const known = new Set()
const EVERY_MS = 15_000

// -- the number of questions
const showNumber = (number) => { document.title = number ? `(${number}) ${title}` : title }
export const tellWaiting = () => showNumber(Number(byId('waiting')?.firstElementChild?.dataset.v || 0))

// A hidden page has no stream, so it asks. The first answer only says what is known already.
async function ask () {
  const answer = await fetch('/waiting').catch(() => null)
  if (!answer?.ok) return
  const { count, questions } = await answer.json()
  showNumber(count)
  for (const question of questions) {
    if (known.has(question.id)) continue
    known.add(question.id)
    if (document.hidden && !ask.isFirst) notify(question)
  }
  ask.isFirst = false
}
ask.isFirst = true
setInterval(() => document.hidden && ask(), EVERY_MS)

// -- notifications: of one question in several tabs, a browser shows one
function notify ({ id, text, href }) {
  if (!('Notification' in window) || Notification.permission !== 'granted') return
  const shown = new Notification('ferrule asks', { body: text, tag: id })
  shown.onclick = () => { focus(); location.href = href }
}
const button = byId('notify')
if (button && 'Notification' in window) {
  button.hidden = Notification.permission !== 'default'
  button.addEventListener('click', async () => { await Notification.requestPermission(); button.hidden = true; ask() })
  if (Notification.permission === 'granted') ask()
}

// -- following: the end stays in view while new steps come, until somebody scrolls up
const showEnd = () => (document.querySelector('.question form') || document.body).scrollIntoView({ block: 'end' })
export const keepAtEnd = () => { if (follow?.checked) showEnd() }
if (follow) {
  let last = scrollY
  addEventListener('scroll', () => {
    const isAtEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 80
    if (isAtEnd) follow.checked = true
    else if (scrollY < last) follow.checked = false
    last = scrollY
  })
  follow.addEventListener('change', keepAtEnd)
  if ('now' in follow.dataset && !location.hash) showEnd()
}

// -- copying
for (const each of document.querySelectorAll('[data-copy]')) {
  each.addEventListener('click', async () => {
    await navigator.clipboard.writeText(byId(each.dataset.copy).textContent)
    each.textContent = 'Copied'
  })
}
