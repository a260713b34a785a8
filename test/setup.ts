/**
 * Property tests draw the same cases every time, so that a red gate is about the change and not about luck; the long run draws new ones, and
 * so does `KVFOLD_SEED=<number>`. fast-check prints the seed of what fails.
 */
import fc from 'fast-check'

const given = process.env['KVFOLD_SEED']
const seed = given === undefined ? 20_261_123 : Number(given)
if (process.env['KVFOLD_LONG'] === undefined || given !== undefined) fc.configureGlobal({ seed })

// What is compared to the last digit was written down for the library that everybody has.
process.env['KVFOLD_CPU_LIBRARY'] ??= 'shipped'
