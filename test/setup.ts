/**
 * Makes property tests draw the same cases every time, so that a failure comes from the change and not from luck. The long run draws new
 * ones, and so does `KVFOLD_SEED=<number>`. fast-check prints the seed of a failure.
 */
import fc from 'fast-check'

const given = process.env['KVFOLD_SEED']
const seed = given === undefined ? 20_261_123 : Number(given)
if (process.env['KVFOLD_LONG'] === undefined || given !== undefined) fc.configureGlobal({ seed })

// Exact expected values were recorded with the shipped library.
process.env['KVFOLD_CPU_LIBRARY'] ??= 'shipped'
