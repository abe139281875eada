// Keys: they move the focus; Enter alone decides.
const byId = (id) => document.getElementById(id)
export const FIELDS = 'input:not([type=hidden]):not([type=checkbox]), textarea, select'
const items = () => [...document.querySelectorAll('[data-item]')].filter((each) => each.checkVisibility())
const here = () => document.activeElement.closest('[data-item]')

// A row has the focus on its link, a closed line on what opens it, an open one on its question.
const focusOn = (item) => (item?.querySelector(':scope:is(tr, p) a, :scope:is(details:not([open])) > summary, :scope:is(details) > .question') || item)?.focus()

function move (step) {
  const all = items()
  const next = all[all.indexOf(here()) + step] || (here() && step < 0 ? byId('older') : null) // above the first: those that are folded
  focusOn(next)
}

const opened = () => { if (here()?.matches('details')) here().open = true }
const reach = (selector) => opened() || (here()?.querySelector(selector) || document.querySelector(selector))?.focus()
// After a decision the page comes back to a question: the keys go on from there.
const target = byId(decodeURIComponent(location.hash.slice(1)))
if (target?.matches('.question')) target.focus({ preventScroll: true })

// How many calls are ticked stands on the buttons that decide on them.
const count = () => {
  const ticked = document.querySelectorAll('.tick input:checked').length
  for (const each of document.querySelectorAll('[data-counts]')) each.textContent = each.dataset.counts.replace('the ticked', `the ${ticked} ticked`)
}
if (document.querySelector('.tick')) { count(); addEventListener('change', count) }

export const KEYS = {
  j: () => move(1), k: () => move(-1), a: () => reach('[data-approve]'), d: () => reach('[data-deny]'),
  x: () => { const box = here()?.querySelector('.tick input'); if (box) { box.click(); move(1) } },
  e: () => { opened(); (here() || document).querySelector('details.edit')?.setAttribute('open', ''); reach('.question :is(.fields, .words:not(.others *)) :is(input, textarea, select)') },
  g: () => { location.href = '/' }, i: () => { location.href = '/inbox' }, '/': () => byId('q')?.select(), '?': () => byId('keys').showModal()
}
addEventListener('keydown', (event) => {
  const sends = 'send' in event.target.dataset && event.key === 'Enter' && !event.shiftKey && !event.isComposing
  if (sends) return event.preventDefault() || event.target.form.requestSubmit()
  if (event.key === 'Escape' && event.target.matches(FIELDS)) return focusOn(event.target.closest('[data-item]'))
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches(FIELDS) || !KEYS[event.key]) return
  event.preventDefault()
  KEYS[event.key]()
})
