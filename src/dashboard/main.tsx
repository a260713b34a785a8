/** The dashboard's beginning. */
import { render } from 'preact'
import { Api } from './api.js'
import { App } from './app.js'
import { HouseContext } from './hooks.js'
import { Live } from './live.js'

const api = new Api()
const live = new Live(api)
live.start()
render(
  <HouseContext.Provider value={{ api, live }}>
    <App />
  </HouseContext.Provider>,
  document.getElementById('app')!,
)
