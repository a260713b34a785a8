/** Owns where the routers and engines of others lie that scripts/engine-parts.mjs installs. */
import { homedir } from 'node:os'
import { join } from 'node:path'

export const partsFolder = (): string => process.env['KVFOLD_ENGINE_PARTS'] ?? join(homedir(), '.cache', 'kvfold', 'engines')
