// Judges a tree's files and proofs with libraries that share nothing with Waltz: checkpoint and
// cosignature with transparency-dev/formats, tiles with golang.org/x/mod, proofs with
// transparency-dev/merkle. Arguments: the directory of the tree, the keys of its log and of a
// witness, then files of proofs. Prints the size of the tree, or what is wrong.
package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/transparency-dev/formats/log"
	f_note "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

type tiles struct{ directory string }

func (t tiles) Height() int { return 8 }

func (t tiles) SaveTiles([]tlog.Tile, [][]byte) {}

func (t tiles) ReadTiles(wanted []tlog.Tile) ([][]byte, error) {
	var found [][]byte
	for _, tile := range wanted {
		// Its paths have the height of tiles before the level.
		path := strings.Replace(tile.Path(), "tile/8/", "tile/", 1)
		data, err := os.ReadFile(filepath.Join(t.directory, path))
		if err != nil {
			return nil, err
		}
		found = append(found, data)
	}
	return found, nil
}

func check(err error) {
	if err != nil {
		fmt.Println("wrong:", err)
		os.Exit(1)
	}
}

func opened(data []byte, logKey, witnessKey string) *log.Checkpoint {
	verifier, err := note.NewVerifier(logKey)
	check(err)
	witness, err := f_note.NewVerifierForCosignatureV1(witnessKey)
	check(err)
	origin, _, _ := strings.Cut(string(data), "\n")
	checkpoint, _, signed, err := log.ParseCheckpoint(data, origin, verifier, witness)
	check(err)
	if len(signed.Sigs) != 2 {
		check(fmt.Errorf("%d known signatures; expected those of the log and of the witness", len(signed.Sigs)))
	}
	return checkpoint
}

func checkTiles(directory string, checkpoint *log.Checkpoint) {
	var root tlog.Hash
	copy(root[:], checkpoint.Hash)
	reader := tlog.TileHashReader(tlog.Tree{N: int64(checkpoint.Size), Hash: root}, tiles{directory})
	indexes := make([]int64, checkpoint.Size)
	for leaf := range indexes {
		indexes[leaf] = tlog.StoredHashIndex(0, int64(leaf))
	}
	leaves, err := reader.ReadHashes(indexes)
	check(err)
	factory := compact.RangeFactory{Hash: rfc6962.DefaultHasher.HashChildren}
	computed := factory.NewEmptyRange(0)
	for _, leaf := range leaves {
		check(computed.Append(leaf[:], nil))
	}
	found, err := computed.GetRootHash(nil)
	check(err)
	if !bytes.Equal(found, checkpoint.Hash) {
		check(fmt.Errorf("the leaves have another root than the checkpoint"))
	}
}

func checkProof(path, logKey, witnessKey string) {
	data, err := os.ReadFile(path)
	check(err)
	head, signed, _ := strings.Cut(string(data), "\n\n")
	lines := strings.Split(head, "\n")
	if lines[0] != "c2sp.org/tlog-proof@v1" {
		check(fmt.Errorf("%s: first line %q", path, lines[0]))
	}
	entry, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(lines[1], "extra "))
	check(err)
	index, err := strconv.ParseUint(strings.TrimPrefix(lines[2], "index "), 10, 64)
	check(err)
	var hashes [][]byte
	for _, line := range lines[3:] {
		hash, err := base64.StdEncoding.DecodeString(line)
		check(err)
		hashes = append(hashes, hash)
	}
	checkpoint := opened([]byte(signed), logKey, witnessKey)
	leaf := rfc6962.DefaultHasher.HashLeaf(entry)
	check(proof.VerifyInclusion(rfc6962.DefaultHasher, index, checkpoint.Size, leaf, hashes, checkpoint.Hash))
}

func main() {
	directory, logKey, witnessKey := os.Args[1], os.Args[2], os.Args[3]
	data, err := os.ReadFile(filepath.Join(directory, "checkpoint"))
	check(err)
	checkpoint := opened(data, logKey, witnessKey)
	checkTiles(directory, checkpoint)
	for _, path := range os.Args[4:] {
		checkProof(path, logKey, witnessKey)
	}
	fmt.Println(checkpoint.Size)
}
