/** Owns names of people who do not exist, and how one of them is related to another. */
import type { Random } from '../../core/random.js'
import { some } from './draw.js'

/** First names. */
export const given = [
  'Ada', 'Albin', 'Amira', 'Anders', 'Anouk', 'Bela', 'Bruno', 'Carla', 'Cosimo', 'Dalia', 'Darko', 'Edith', 'Elias', 'Emre',
  'Farah', 'Felix', 'Greta', 'Hanna', 'Hugo', 'Ilse', 'Imran', 'Ines', 'Ivo', 'Jana', 'Jonas', 'Kaja', 'Kenji', 'Laila',
  'Leon', 'Lucia', 'Magda', 'Malik', 'Marta', 'Milan', 'Nadia', 'Nils', 'Nora', 'Oskar', 'Paula', 'Petra', 'Rafael', 'Renata',
  'Samir', 'Selma', 'Sofia', 'Stefan', 'Tamar', 'Tilda', 'Tomas', 'Viktor', 'Vera', 'Wanda', 'Yusuf', 'Zara',
] // prettier-ignore
const family = [
  'Abel', 'Almeida', 'Arslan', 'Bakker', 'Berg', 'Castell', 'Cerny', 'Dahl', 'Dumont', 'Eklund', 'Falk', 'Ferrer', 'Fontana',
  'Grieg', 'Haddad', 'Halloran', 'Holm', 'Ibarra', 'Jansen', 'Kaminski', 'Keller', 'Kovac', 'Lang', 'Lindqvist', 'Lorca',
  'Marek', 'Mori', 'Nagy', 'Novak', 'Okafor', 'Olsen', 'Pereira', 'Petrov', 'Quist', 'Ramos', 'Rossi', 'Sandoval', 'Sato',
  'Simic', 'Sorel', 'Tanaka', 'Toth', 'Urban', 'Vidal', 'Vogt', 'Weiss', 'Winter', 'Yilmaz', 'Zeman', 'Zoric',
] // prettier-ignore

/** Different given and family names for everyone, so that no part of a name stands for two of them. Up to 50. */
export function people(random: Random, count: number): string[] {
  const last = some(random, family, count)
  return some(random, given, count).map((name, index) => `${name} ${last[index] ?? ''}`)
}

/** The ten words NeedleBench uses for somebody of an earlier generation. */
export const elderRelations = [
  'father', 'mother', 'dad', 'mom', 'grandfather', 'grandmother', 'maternal grandfather', 'maternal grandmother',
  'paternal grandfather', 'paternal grandmother',
] as const // prettier-ignore

/** Seven ways to say that the elder is a relation of the younger. */
export const kinships: readonly ((elder: string, younger: string, relation: string) => string)[] = [
  (elder, younger, relation) => `The ${relation} of ${younger} is ${elder}.`,
  (elder, younger, relation) => `${elder} is the ${relation} of ${younger}.`,
  (elder, younger, relation) => `As the ${relation} of ${younger}, ${elder} taught ${younger} a great deal.`,
  (elder, younger, relation) => `${younger} grew up with ${elder}, who is ${younger}'s ${relation}.`,
  (elder, younger, relation) => `${younger} calls ${elder} not only ${relation}, but a friend as well.`,
  (elder, younger, relation) => `What ${younger} admires in ${elder}, ${younger}'s ${relation}, is patience.`,
  (elder, younger, relation) => `${elder} is ${younger}'s ${relation}, and an example to ${younger} in everything.`,
]
