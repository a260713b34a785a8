/** The real models that `npm run test:real` found: paths by the names of scripts/models-real.mjs; empty in other runs. */
export const REAL_MODELS = JSON.parse(process.env['KVFOLD_REAL'] ?? '{}') as Readonly<Record<string, string | undefined>>

/** The name of the test that is skipped where a file finds none of its models. */
export const NEEDED = 'needs a real model (npm run models:real, then npm run test:real)'
