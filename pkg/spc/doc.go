// Package spc finds the StackPointCloud (SPC) record of a node and says which labels follow from it.
//
// It is pure. Exactly one live record must match on the evidence; doubt yields no labels and the sentence that says why.
package spc
