package image

import (
	"encoding/binary"
	"fmt"
	"path"
)

// ext2 writes a one-group ext2 revision 1 file system, which every kernel with
// ext4 mounts (as type ext4 or ext2). It exists because mke2fs needs a tool on
// the host and puts the time into its output. Structures:
// Documentation/filesystems/ext4 in the kernel source.
type ext2 struct {
	blocks    [][]byte
	next      uint32 // first unused block
	inodes    []ext2Inode
	byPath    map[string]uint32 // directory → inode number
	entries   map[uint32][]ext2Entry
	usedDirs  uint16
	dirParent map[uint32]uint32
}

type ext2Inode struct {
	mode, links uint16
	size        uint32
	blocks      []uint32
}

type ext2Entry struct {
	ino  uint32
	kind byte
	name string
}

const (
	ext2Block     = 4096
	ext2InodeSize = 256
	ext2Inodes    = 64
	ext2Table     = 4 // first block of the inode table, after superblock, descriptors and two bitmaps
	ext2Data      = ext2Table + ext2Inodes*ext2InodeSize/ext2Block
	ext2Root      = 2
	ext2FirstIno  = 11
	ext2KindFile  = 1
	ext2KindDir   = 2
	ext2Direct    = 12
)

// ext2ID is the constant UUID and hash seed of every image.
var ext2ID = [16]byte{'b', 's', 'm', '-', 'r', 'e', 0x40, 't', 0x80, 'a', 'm', '-', 'r', 'o', 'o', 't'}

func newExt2(blocks int) *ext2 {
	fs := &ext2{
		blocks: make([][]byte, blocks), next: ext2Data, inodes: make([]ext2Inode, ext2FirstIno-1, ext2Inodes),
		byPath: map[string]uint32{".": ext2Root}, entries: map[uint32][]ext2Entry{}, dirParent: map[uint32]uint32{ext2Root: ext2Root},
		usedDirs: 1,
	}
	fs.inodes[ext2Root-1] = ext2Inode{mode: 0o40755, links: 2}
	return fs
}

// node adds an inode called p.
func (fs *ext2) node(p string, mode uint16, kind byte) (uint32, error) {
	parent, ok := fs.byPath[path.Dir(p)]
	if !ok {
		return 0, fmt.Errorf("root disk: %s has no parent directory", p)
	}
	if len(fs.inodes) == ext2Inodes {
		return 0, fmt.Errorf("root disk: no inode left for %s", p)
	}
	fs.inodes = append(fs.inodes, ext2Inode{mode: mode, links: 1})
	ino := uint32(len(fs.inodes))
	fs.entries[parent] = append(fs.entries[parent], ext2Entry{ino, kind, path.Base(p)})
	if kind == ext2KindDir {
		fs.byPath[p], fs.dirParent[ino] = ino, parent
		fs.inodes[ino-1].links = 2
		fs.inodes[parent-1].links++
		fs.usedDirs++
	}
	return ino, nil
}

func (fs *ext2) mkdir(p string, mode uint16) error {
	_, err := fs.node(p, 0o40000|mode, ext2KindDir)
	return err
}

func (fs *ext2) write(p string, mode uint16, data []byte) error {
	ino, err := fs.node(p, 0o100000|mode, ext2KindFile)
	if err != nil {
		return err
	}
	return fs.fill(ino, data)
}

// fill stores data in direct blocks, which is all that this disk needs.
func (fs *ext2) fill(ino uint32, data []byte) error {
	n := &fs.inodes[ino-1]
	n.size = uint32(len(data))
	for off := 0; off < len(data); off += ext2Block {
		if len(n.blocks) == ext2Direct || int(fs.next) == len(fs.blocks) {
			return fmt.Errorf("root disk: %d bytes do not fit", len(data))
		}
		block := make([]byte, ext2Block)
		copy(block, data[off:])
		fs.blocks[fs.next] = block
		n.blocks = append(n.blocks, fs.next)
		fs.next++
	}
	return nil
}

// bytes lays everything out; the file system cannot be changed afterwards.
func (fs *ext2) bytes() ([]byte, error) {
	// fsck expects lost+found; as the first free inode it would have been 11.
	if err := fs.mkdir("lost+found", 0o700); err != nil {
		return nil, err
	}
	for ino := uint32(1); ino <= uint32(len(fs.inodes)); ino++ {
		if fs.inodes[ino-1].mode&0o170000 != 0o40000 {
			continue
		}
		block, err := fs.dirBlock(ino)
		if err != nil {
			return nil, err
		}
		if err := fs.fill(ino, block); err != nil {
			return nil, err
		}
	}
	img := make([]byte, len(fs.blocks)*ext2Block)
	for i, b := range fs.blocks {
		copy(img[i*ext2Block:], b)
	}
	fs.superblock(img[1024:])
	fs.descriptor(img[ext2Block:])
	bitmap(img[2*ext2Block:3*ext2Block], int(fs.next), len(fs.blocks))
	bitmap(img[3*ext2Block:4*ext2Block], len(fs.inodes), ext2Inodes)
	for i, n := range fs.inodes {
		n.put(img[ext2Table*ext2Block+i*ext2InodeSize:])
	}
	return img, nil
}

func (fs *ext2) dirBlock(ino uint32) ([]byte, error) {
	list := append([]ext2Entry{{ino, ext2KindDir, "."}, {fs.dirParent[ino], ext2KindDir, ".."}}, fs.entries[ino]...)
	block := make([]byte, ext2Block)
	at := 0
	for i, e := range list {
		size := (8 + len(e.name) + 3) &^ 3
		if at+size > ext2Block {
			return nil, fmt.Errorf("root disk: directory of inode %d is over one block", ino)
		}
		if i == len(list)-1 {
			size = ext2Block - at
		}
		binary.LittleEndian.PutUint32(block[at:], e.ino)
		binary.LittleEndian.PutUint16(block[at+4:], uint16(size))
		block[at+6], block[at+7] = byte(len(e.name)), e.kind
		copy(block[at+8:], e.name)
		at += size
	}
	return block, nil
}

func (n ext2Inode) put(b []byte) {
	le := binary.LittleEndian
	if n.mode == 0 {
		return
	}
	le.PutUint16(b, n.mode)
	le.PutUint32(b[4:], n.size)
	le.PutUint16(b[26:], n.links)
	le.PutUint32(b[28:], uint32(len(n.blocks)*ext2Block/512))
	for i, blk := range n.blocks {
		le.PutUint32(b[40+4*i:], blk)
	}
	le.PutUint16(b[128:], 32) // i_extra_isize
}

func (fs *ext2) superblock(b []byte) {
	le := binary.LittleEndian
	for off, v := range map[int]uint32{
		0: ext2Inodes, 4: uint32(len(fs.blocks)), 12: uint32(len(fs.blocks)) - fs.next, 16: uint32(ext2Inodes - len(fs.inodes)),
		24: 2, 28: 2, 32: 8 * ext2Block, 36: 8 * ext2Block, 40: ext2Inodes, // sizes are log2(4096/1024)
		76: 1, 84: ext2FirstIno, 96: 2, // revision 1; directory entries carry the file type
	} {
		le.PutUint32(b[off:], v)
	}
	le.PutUint16(b[54:], 0xffff) // never forced to check by mount count
	le.PutUint16(b[56:], 0xef53)
	le.PutUint16(b[58:], 1) // clean
	le.PutUint16(b[60:], 1) // on errors: continue
	le.PutUint16(b[88:], ext2InodeSize)
	copy(b[104:], ext2ID[:])
	copy(b[120:136], "bsm-root")
	copy(b[236:], ext2ID[:])
	le.PutUint16(b[0x15c:], 32)
	le.PutUint16(b[0x15e:], 32)
}

func (fs *ext2) descriptor(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b, 2)
	le.PutUint32(b[4:], 3)
	le.PutUint32(b[8:], ext2Table)
	le.PutUint16(b[12:], uint16(uint32(len(fs.blocks))-fs.next))
	le.PutUint16(b[14:], uint16(ext2Inodes-len(fs.inodes)))
	le.PutUint16(b[16:], fs.usedDirs)
}

// bitmap marks the first used of total bits, and the padding after total.
func bitmap(b []byte, used, total int) {
	for i := range len(b) * 8 {
		if i < used || i >= total {
			b[i/8] |= 1 << (i % 8)
		}
	}
}
