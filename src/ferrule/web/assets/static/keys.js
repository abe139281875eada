// Keys: they move the focus; Enter alone decides.
const byId = (id) => document.getElementById(id)
export const FIELDS = 'input:not([type=hidden]):not([type=checkbox]), textarea, select'
const items = () => [...document.querySelectorAll('[data-item]')].filter((each) => each.checkVisibility())
const here = () => document.activeElement.closest('[data-item]')

function move (step) {
  const all = items()
  const next = all[all.indexOf(here()) + step] || (here() && step < 0 ? byId('older') : null) // above the first: those that are folded
  next?.matches('tr, p') ? next.querySelector('a').focus() : next?.focus()
}

const reach = (selector) => (here()?.querySelector(selector) || document.querySelector(selector))?.focus()
export const KEYS = {
  j: () => move(1), k: () => move(-1), a: () => reach('[data-approve]'), d: () => reach('[data-deny]'),
  e: () => { (here() || document).querySelector('details.edit')?.setAttribute('open', ''); reach('.question :is(.fields, .words:not(.others *)) :is(input, textarea, select)') },
  g: () => { location.href = '/' }, i: () => { location.href = '/inbox' }, '?': () => byId('keys').showModal()
}
addEventListener('keydown', (event) => {
  const sends = 'send' in event.target.dataset && event.key === 'Enter' && !event.shiftKey && !event.isComposing
  if (sends) return event.preventDefault() || event.target.form.requestSubmit()
  if (event.key === 'Escape' && event.target.matches(FIELDS)) return event.target.closest('[data-item]')?.focus()
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches(FIELDS) || !KEYS[event.key]) return
  event.preventDefault()
  KEYS[event.key]()
})
