// Package snapshot keeps a copy of the published tables in a folder, and turns one back
// into messages.
//
// A folder has one file per table, in the text format of COPY, and manifest.json, which
// says what they are: the position that the copy stands at, the tables with their columns
// and types, and the size and SHA-256 of each file. The manifest is written last. So a
// folder with a manifest is whole, whatever ended the process that wrote it; one without
// is what an interrupted run left behind, and the next one removes that.
//
//	in-progress                     there while somebody writes, locked by him
//	00001-public-item.copy.zst.tmp  a file that is being written
//	00001-public-item.copy.zst      a file that is whole
//	manifest.json                   the folder is whole
//
// A Folder writes, a Reader reads. Rows become messages by the decoder of the stream, so
// that a value looks the same whichever way it came.
package snapshot
