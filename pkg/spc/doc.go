// Package spc finds the StackPointCloud (SPC) machine of a Node and decides which labels
// and annotations the Node gets from it.
//
// [NewIndex] indexes an [Inventory], the list of machines. [Index.Find] returns the [Match]
// of one Node, [NewReport] the labels and annotations that the Node lacks. [Summarize]
// compares the whole list with all Nodes.
//
// The package is pure: it does no I/O and reads no clock. A Node matches if its evidence
// points to exactly one live record. In case of doubt it gets no labels, and the [Match]
// explains why.
package spc
