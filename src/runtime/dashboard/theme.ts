/** The page's colours: those of the system, or those that the user chose for this browser. */

export const THEMES = ['system', 'light', 'dark'] as const
export type Theme = (typeof THEMES)[number]

const PLACE = 'kvfold-theme'

export const chosenTheme = (): Theme => THEMES.find((theme) => theme === localStorage.getItem(PLACE)) ?? 'system'

/** Stores the user's choice of colours. For the system's colours it stores nothing. */
export function chooseTheme(theme: Theme): void {
  if (theme === 'system') localStorage.removeItem(PLACE)
  else localStorage.setItem(PLACE, theme)
  applyTheme(theme)
}

export function applyTheme(theme: Theme): void {
  document.documentElement.dataset['theme'] = theme
}
