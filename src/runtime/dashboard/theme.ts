/** The colours of the page: the system's, or those that the user chose in this browser. */

export const THEMES = ['system', 'light', 'dark'] as const
export type Theme = (typeof THEMES)[number]

const PLACE = 'kvfold-theme'

export const chosenTheme = (): Theme => THEMES.find((theme) => theme === localStorage.getItem(PLACE)) ?? 'system'

/** Stores the choice of colours. The system's colours are the default, so for them nothing is stored. */
export function chooseTheme(theme: Theme): void {
  if (theme === 'system') localStorage.removeItem(PLACE)
  else localStorage.setItem(PLACE, theme)
  applyTheme(theme)
}

export function applyTheme(theme: Theme): void {
  document.documentElement.dataset['theme'] = theme
}
