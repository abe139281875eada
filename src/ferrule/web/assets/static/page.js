// Live parts of a page, and keys. Without this file the page works, but is not live.
import { FIELDS, KEYS } from './keys.js'
import { keepAtEnd, tellWaiting } from './tell.js'
const byId = (id) => document.getElementById(id)
const body = document.body
let [source, last] = [null, '']

// -- the stream: closed while the page is hidden, because a browser opens few connections to one server
const tell = (text) => { byId('link').textContent = text; byId('link').hidden = !text }
function connect () {
  if (!body.dataset.live || document.hidden || source) return
  const url = new URL(body.dataset.live, location)
  if (last) url.searchParams.set('after', last)
  source = new EventSource(url)
  source.onopen = () => tell('')
  source.onmessage = (event) => { last = event.lastEventId || last; merge(event.data) }
  source.addEventListener('trouble', (event) => tell(event.data)) // of the store; the stream goes on
  source.addEventListener('gone', (event) => { disconnect(); body.dataset.live = ''; tell(event.data) })
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) return tell('Connection lost. Trying again…')
    disconnect()
    tell('Connection lost. If the server was restarted, open its new link.')
    setTimeout(connect, 2000)
  }
}
const disconnect = () => { source?.close(); source = null }
document.addEventListener('visibilitychange', () => document.hidden ? disconnect() : connect())
addEventListener('pagehide', disconnect)
addEventListener('pageshow', connect)
// -- merging: elements are known by their key, and stay as they are while their version does
const isTyped = (element) => element.querySelector('form[data-typed]') ||
  (element.contains(document.activeElement) && document.activeElement.matches(FIELDS))

function merge (html) {
  const parsed = Object.assign(document.createElement('template'), { innerHTML: html })
  const focused = document.activeElement
  const news = []
  for (const part of parsed.content.querySelectorAll('[data-into]')) {
    const place = byId(part.dataset.into)
    if (!place) continue
    if ('reload' in place.dataset && part.children.length) return location.reload()
    const added = mergeInto(place, part)
    if (added && place.dataset.noun) news.push(`${added} new ${place.dataset.noun}${added > 1 ? 's' : ''}`)
  }
  if (focused.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true })
  if (news.length) byId('news').textContent = news.join(', ')
  if (news.length || byId('draft')?.firstElementChild) keepAtEnd()
  tellWaiting()
  refresh()
}

function mergeInto (place, part) {
  const before = new Map([...place.children].map((each) => [each.dataset.key, each]))
  const after = []
  let added = 0
  for (const element of [...part.children]) {
    const old = before.get(element.dataset.key)
    before.delete(element.dataset.key)
    if ('gone' in element.dataset) { old?.remove(); continue }
    if (!old && !('quiet' in element.dataset)) added += 1
    after.push(old ? update(old, element) : element)
    if (!old && !('whole' in part.dataset)) place.append(element)
  }
  if (!('whole' in part.dataset)) return added
  before.forEach((old) => isTyped(old) ? warn(old) : old.remove())
  after.forEach((element, at) => { if (place.children[at] !== element) place.insertBefore(element, place.children[at] || null) })
  return added
}

function update (old, element) {
  if (element.dataset.v && old.dataset.v === element.dataset.v) return old
  if (isTyped(old)) return warn(old)
  const open = [...old.querySelectorAll('details')]
  element.querySelectorAll('details').forEach((each, at) => { if (at in open) each.open = open[at].open })
  if (old.open) element.open = true
  const ticked = old.querySelector('[form=compare]:checked')
  if (ticked) element.querySelector('[form=compare]').checked = true
  const had = old.contains(document.activeElement)
  old.replaceWith(element)
  if (had) element.focus({ preventScroll: true })
  return element
}
function warn (element) {
  const note = 'This changed elsewhere. What you typed is still here; reload the page to see the change.'
  if (!element.querySelector('.stale')) (element.querySelector('.question') || element).insertAdjacentHTML('afterbegin', `<p class="stale">${note}</p>`)
  return element
}

// -- earlier steps: fetched at once, so that a search in the page finds them, and folded until they are wanted
async function fold (older) {
  const page = new DOMParser().parseFromString(await (await fetch(older.querySelector('a').href)).text(), 'text/html')
  const box = Object.assign(document.createElement('div'), { hidden: 'until-found' })
  const show = () => { box.hidden = false; older.replaceWith(page.getElementById('older') || '') }
  box.append(...page.querySelectorAll('#beats > article')) // none, if the answer is an error: the link stays a link
  if (!box.firstElementChild) return
  byId('beats').prepend(box)
  box.addEventListener('beforematch', show)
  older.addEventListener('click', (event) => { event.preventDefault(); show(); box.firstElementChild.focus({ preventScroll: true }) })
}

// -- forms and times
body.addEventListener('input', (event) => {
  const form = event.target.form
  if (!form?.querySelector('[data-approve]')) return
  form.dataset.typed = ''
  if (!/^(v|null|out):/.test(event.target.name)) return
  form.dataset.edited = '' // hides the approval of further calls, which is for the call as it is shown
  for (const button of form.querySelectorAll('[data-changed]')) button.textContent = button.dataset.changed
  if (event.target.type === 'checkbox' || !event.target.value) return
  for (const box of event.target.parentElement.querySelectorAll('.null > input')) box.checked = false
})
addEventListener('dblclick', (event) => event.target.matches('input') && event.target.select()) // also beside the text
const span = (seconds) => {
  const [size, unit] = [[86400, 'd'], [3600, 'h'], [60, 'min']].find(([size]) => seconds >= size) || [1, 's']
  return `${Math.max(0, Math.round(seconds / size))} ${unit}`
}

function refresh () {
  const now = Date.now() / 1000
  for (const time of document.querySelectorAll('time[data-ago]')) time.textContent = `${span(now - time.dataset.ago)} ago`
  const left = (until) => until > now ? `in ${span(until - now)}` : 'now'
  for (const time of document.querySelectorAll('time[data-until]')) time.textContent = left(time.dataset.until)
}
setInterval(refresh, 5000)

for (const each of document.querySelectorAll('#help, .only-script')) each.hidden = false
const typedEarly = [...document.querySelectorAll(FIELDS)].filter((each) => each.value !== (each.defaultValue ?? each.value))
typedEarly.forEach((each) => each.dispatchEvent(new Event('input', { bubbles: true })))
byId('help').addEventListener('click', KEYS['?'])
if (body.dataset.live && byId('older')) fold(byId('older'))
if (document.querySelector('.chat .beats')) byId('message')?.scrollIntoView({ block: 'end' })
connect()
